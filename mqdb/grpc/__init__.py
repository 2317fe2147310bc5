"""RocketMQ 5's gRPC protocol: RocketMQ's SDKs can use mqdb without changes.

    front           the server, and the handlers of its calls
    certificate     the certificate of a front without a given one
    telemetry       the streams of clients: settings, and requests of the broker
    questions       requests of operators to running consumers
    transactions    half messages of clients: the outcomes of their transactions
    sends           messages to the log
    consuming       the calls of consumers
    in_flight       messages that consumers have: prolonged, given up
    routes          topics, and what each client may ask of them
    members         the clients, and the groups that they are in
    request_memory  the memory of all requests under way
    traffic         counts of calls, as metrics
    calls           callers, and whether they are authentic
    wire            messages and errors as the SDKs read them, without I/O

Modules import only from modules further down this list. Parts that the front for the remoting protocol shares are in
`mqdb.fronts`.
"""
