"""Messages that are delivered when a local transaction has committed. RocketMQ: TransactionMQProducer.

transaction_producer    start here; transaction_listener: the user's two functions
check_answers           answers to a broker's checks
"""
