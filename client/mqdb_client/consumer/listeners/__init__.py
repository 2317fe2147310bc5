"""The calls of the user's code.

message_listener           what listeners are; listener_answer: what they return
consume_service            what all services share: consume_concurrently, consume_orderly, consume_exactly_once
consume_in_loop            coroutines of an event loop; loop_tasks, loop_calls, ctrl_c, stop_signals: how they run
running_calls              calls under way; worker_threads: the threads; token_line, queue_line: whose turn it is
orderly_verdict            what the answer of an orderly listener means
listener_transactions      the transactions of exactly_once_listener
consume_hooks              what is told of a call
send_back                  messages that have failed
direct_consumption         a message that an operator has the listener consume
"""
