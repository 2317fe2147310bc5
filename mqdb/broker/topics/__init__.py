"""Create, change and find topics.

topics        create, change, delete and show topics
route         the queues of a topic, and topics that are created when needed
topic_ranges  the data with which a bulk reader plans
"""
