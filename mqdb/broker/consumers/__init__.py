"""Pull, own queues, commit, reset, send back; or pop.

offsets, group_offsets   offsets of groups, committed by owners of queues and by other readers
pull                     messages of several queues; horizon: the segments that it opens
queue_locks              queues that are consumed in order
exactly_once             effects, sends and offsets in one transaction
send_back                failed messages
pop                      messages of any queue, each acknowledged
in_flight                reads popped messages again
leftovers                messages that were popped before the group switched to pulling
offset_reset, groups     changes by operators
"""
