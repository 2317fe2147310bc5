"""Simple consumers, which receive messages and acknowledge each. RocketMQ 5: SimpleConsumer.

simple_consumer, simple_config    begin here; what it can be told
receiving                         a call of `receive`, and who pops for it
"""
