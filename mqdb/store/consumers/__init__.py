"""Consumer groups: subscriptions, offsets, locks, and failed messages.

groups, subscriptions          settings and members; what a group reads of each topic
consumer_offsets, queue_locks  the progress of a group and the owners of queues; temporary exclusive locks
group_offsets                  offsets of readers that do not own queues
offset_commits, poll_commits   commits as separate rows
offset_changes, standings      offsets set by operators; the state of groups in queues
send_back, waiting_retries     copies of failed messages; how many wait for each retry
pop_batches                    messages that were popped
"""
