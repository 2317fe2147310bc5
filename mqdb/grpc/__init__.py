"""RocketMQ 5's gRPC protocol, so that its SDKs can use mqdb as they are.

    front           the server, and which handler a call has
    certificate     that of a front that was given none
    telemetry       the streams of clients: settings, and what the broker asks
    questions       what people ask running consumers
    transactions    half messages of clients: what has become of their transactions
    sends           messages to the log
    consuming       the calls of consumers
    in_flight       messages that consumers have: prolonged, given up
    routes          topics, and what each client may ask of them
    members         the clients, and the groups that they are in
    request_memory  how much the requests under way hold together
    traffic         what is counted, and told as metrics
    calls           who calls, and whether that may be
    wire            messages and errors as the SDKs read them, without I/O

Imports point down this list. What the front for the remoting protocol needs as well is in `mqdb.fronts`.
"""
