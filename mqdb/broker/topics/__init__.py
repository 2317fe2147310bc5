"""Create, change and find topics.

topics        create, change, delete and look at topics
route         which queues a topic has, and topics that are made when needed
topic_ranges  what a reader in bulk plans with
"""
