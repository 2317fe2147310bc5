"""The offsets of a group.

offset_store                in the database
locked_offset_store         for queues that are consumed in order
exactly_once_offset_store   in the transaction of the listener
local_offsets               in a file, for broadcasting; local_file_offset_store: its offset store
"""
