"""Pull, own queues, commit, reset, send back; or pop.

offsets, group_offsets   offsets of groups, as owners of queues and other readers commit them
pull                     messages of several queues; horizon: the segments that it opens
queue_locks              queues that are consumed in order
exactly_once             effects, sends and offsets in one transaction
send_back                messages that have failed
pop                      messages of any queue, each acknowledged
in_flight                reads messages that were popped once more
leftovers                messages that were popped before the group changed to pulling
offset_reset, groups     changes by operators
"""
