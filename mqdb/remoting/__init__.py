"""RocketMQ's remoting protocol, so that its clients can use mqdb as they are.

    front      the socket, the loop, and which handler a request has
    handlers   the table of codes
    routes     the name server's side
    wire       bytes and bodies in, values out, without I/O
    session    connections, whose they are, and the clients behind them
    producing  sends, transactions, replies, messages that are sent back
    consuming  pulls, offsets and locks of those who own queues; pops
    tools      what RocketMQ's own tools ask

Imports point down this list. What the front for gRPC needs as well is in `mqdb.fronts`.
"""
