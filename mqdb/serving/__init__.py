"""The processes that serve: each module assembles a process from its parts, and runs it until it is interrupted.

broker    `mqdb serve`: a `Server`, with the dashboard and the front if the settings say where
front     the front for RocketMQ's clients, as in `mqdb serve` and alone (`mqdb remoting`)
grpc_front  the front for RocketMQ 5's SDKs, as in `mqdb serve` and alone (`mqdb grpc`)
web       `mqdb web`: the dashboard alone, with its probes
metrics   probes and scrapes of processes that serve nothing else over HTTP
"""
