"""Values of messages, queues and groups, in the form that pages show. No module here queries the broker.

bodies, json_text, differences    a body: as text, as a tree, changed, and compared with another one
copies                            a message as a command, as Python and as SQL
tracebacks                        the traceback of a failed listener, with the frames of libraries folded
queue_bars, retry_ladder          queues and retries as bars
message_filters                   the filter that a form describes
"""
