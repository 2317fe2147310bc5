"""RocketMQ's remoting protocol, so that its clients can use mqdb without changes.

    front      the socket, the loop, and the handlers of requests
    handlers   the table of codes
    routes     the name server's side
    wire       bytes and bodies in, values out, without I/O
    session    connections, their clients and their keys
    producing  sends, transactions, replies, messages that are sent back
    consuming  pulls, offsets and locks of the owners of queues; pops
    tools      requests of RocketMQ's own tools

Imports point down this list. Parts that the front for gRPC needs as well are in `mqdb.fronts`.
"""
