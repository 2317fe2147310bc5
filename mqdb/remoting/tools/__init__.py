"""Requests of RocketMQ's tools to the front, and of programs that look something up.

administration    topics, groups, offsets
tool_statistics   counts, and connected clients
questions         requests that are passed on to a client
lookup            messages by key and id
admin_bodies      the bodies of the answers
"""
