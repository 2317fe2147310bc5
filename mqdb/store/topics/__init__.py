"""Topics, their uses, and their ranges for bulk readers.

topics                      topics and their queues
topic_uses, deleted_topics  the uses of a topic; topics that were deleted with their waiting messages
topic_ranges                ranges for bulk readers
"""
