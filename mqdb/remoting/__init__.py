"""RocketMQ's remoting protocol, so that its clients can use mqdb as they are.

`frame`, `wire_message` and `signature` are the wire: bytes in, values out, without I/O. `codes` names the requests.
"""
