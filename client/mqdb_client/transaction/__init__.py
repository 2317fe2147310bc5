"""Messages that are delivered when a local transaction has committed. RocketMQ: TransactionMQProducer."""
