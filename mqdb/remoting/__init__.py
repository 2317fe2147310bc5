"""RocketMQ's remoting protocol: RocketMQ's own clients can use mqdb without changes.

    front      the socket, the loop, and the handlers of requests
    handlers   the table of codes
    routes     the name server's side
    wire       bytes and bodies in, values out, without I/O
    session    connections, their clients and their keys
    producing  sends, transactions, replies, messages that are sent back
    consuming  pulls, offsets and locks of the owners of queues; pops
    tools      requests of RocketMQ's own tools

Modules import only from modules further down this list. Parts that the gRPC front shares are in `mqdb.fronts`.
"""
