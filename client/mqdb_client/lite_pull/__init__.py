"""Lite pull consumers, which poll. RocketMQ: DefaultLitePullConsumer.

lite_pull_consumer, lite_pull_config    begin here; the options
poll_strategy, poll_buffer              how it reads; the messages for polls
assigned_queue, polled_offset_stores    a queue in which a user may seek; commits
topic_queues, topic_watch               which queues there are, and when that changes
"""
