"""The vocabulary: messages, topics, groups, delays, and what else all layers speak of. No I/O.

message, property, topic, group   what users send, to where, and who reads it
kafka_record                      records of Kafka as messages
received_message                  what consumers get; proof: and how it is known again; receipt_handle: and acknowledged
unique_id, compression            ids and bodies
delivery_schedule, delay_level, recall_handle   when a message is due
retry, retry_delays, failure      what becomes of one that has failed, when it comes again, and why
transaction                       the states of a half message
durability, dsn, http_address     what a commit waits for; where databases and pages are
clock, duration, wake_limit, backoff   time
argument_types, user_error, log_lines, printable   rules for arguments; errors of users; logs; texts of strangers
"""
