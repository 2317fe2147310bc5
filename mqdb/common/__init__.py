"""The vocabulary: messages, topics, groups, delays, and other terms of all layers. No I/O.

message, property, topic, group   messages that users send, their topics, and groups
kafka_record                      records of Kafka as messages
received_message                  messages for consumers; proof: positions in the log; receipt_handle: acknowledgements
unique_id, compression            ids and bodies
delivery_schedule, delay_level, recall_handle   when a message is due
retry, retry_delays, failure      the retry of a failed message, its time, and the reason
transaction                       the states of a half message
durability, dsn, http_address     the wait of a commit; addresses of databases and pages
clock, duration, wake_limit, backoff   time
argument_types, user_error, log_lines, printable   rules for arguments; errors in user code; logs; untrusted text
"""
