"""Check a filter, and try one.

filters   whether a broker takes those by SQL92
trial     a filter on the messages that a topic has
"""
