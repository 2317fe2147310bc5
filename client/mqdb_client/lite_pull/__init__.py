"""Lite pull consumers, which poll. RocketMQ: DefaultLitePullConsumer.

lite_pull_consumer, lite_pull_config    start here; the options
poll_strategy, poll_buffer              how queues are read; the messages for polls
assigned_queue, polled_offset_stores    a queue in which a user may seek; commits
topic_queues, topic_watch               the queues of a topic, and changes to them
"""
