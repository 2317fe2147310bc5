"""Simple consumers, which receive messages and acknowledge each message. RocketMQ 5: SimpleConsumer.

simple_consumer, simple_config    start here; the options
receiving                         a call of `receive`, and the pops behind it
"""
