"""What RocketMQ's tools ask of the front, and programs that look something up.

administration    topics, groups, offsets
tool_statistics   counts, and who is connected
questions         what is asked of a client in turn
lookup            messages by key and id
admin_bodies      the bodies of the answers
"""
