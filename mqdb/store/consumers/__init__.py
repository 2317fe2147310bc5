"""Consumer groups: subscriptions, offsets, locks, and failed messages.

groups, subscriptions          settings and members; what a group reads of each topic
consumer_offsets, queue_locks  how far a group has come, and who owns a queue, alone for a while
group_offsets                  offsets of one who owns no queue
offset_commits, poll_commits   commits as rows of their own
offset_changes, standings      offsets that people set; how groups stand
send_back                      copies of messages that have failed
pop_batches                    messages that were popped
"""
