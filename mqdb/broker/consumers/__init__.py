"""Pull, own queues, commit, reset, send back; or pop.

offsets, group_offsets   how far a group has come, by who owns queues and by who does not
pull                     messages of several queues; horizon: which segments it opens
queue_locks              queues that are consumed in order
exactly_once             effects, sends and offsets in one transaction
send_back                messages that have failed
pop                      messages of any queue, each acknowledged
in_flight                what was popped is read once more
leftovers                what was popped in a group that pulls by now
offset_reset, groups     what people change
"""
