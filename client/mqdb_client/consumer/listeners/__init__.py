"""The calls of the user's code.

message_listener           the types of listeners; listener_answer: their answers
consume_service            the common part of all services: consume_concurrently, consume_orderly, consume_exactly_once
consume_in_loop            coroutines of an event loop; loop_tasks, loop_calls, ctrl_c, stop_signals: their runtime
running_calls              calls under way; worker_threads: the threads; token_line, queue_line: the order of calls
orderly_verdict            the meaning of an orderly listener's answer
listener_transactions      the transactions of exactly_once_listener
consume_hooks              hooks around a call
send_back                  sends back failed messages
direct_consumption         a message that an operator sends directly to the listener
"""
