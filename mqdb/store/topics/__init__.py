"""Topics, what names them, and their ranges for readers in bulk.

topics                      topics and their queues
topic_uses, deleted_topics  what names a topic; those that went with their messages
topic_ranges                for readers in bulk
"""
