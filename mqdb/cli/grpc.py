"""`mqdb grpc`: the front for RocketMQ 5's SDKs alone, for a broker that is served elsewhere."""

import logging
from contextlib import ExitStack
from typing import Annotated, Final

import typer

from mqdb.cli.options import log_from, start, warn_of_unknown_variables
from mqdb.serving.metrics import metrics_served

_DEFAULT_ADDRESS: Final = "127.0.0.1:8081"


def grpc(
    context: typer.Context,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help=f"Where to serve; MQDB_GRPC, or {_DEFAULT_ADDRESS}.")
    ] = None,
    tls: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to serve by TLS as well; MQDB_GRPC_TLS.")
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to serve /healthz, /readyz and /metrics.")
    ] = None,
) -> None:
    """Serve RocketMQ 5's SDKs: Java, Go, Python, Node, C#, C++, Rust.

    They speak gRPC, and consume by pop. With MQDB_GRPC=127.0.0.1:8081 mqdb
    serve serves them too. Several of these processes may listen at one port,
    one for each core, and share the connections. Any address but loopback needs
    an access key with a secret (mqdb acl secret), or MQDB_GRPC_OPEN=true, with
    which any client that reaches it may do everything.

    \b
    [bold]Examples[/bold]
      mqdb grpc
      mqdb grpc --dsn postgresql://mqdb@db.example.org/mqdb
      mqdb grpc --address 0.0.0.0:8081 --tls 0.0.0.0:8082
    """
    settings = start(context, grpc=address, grpc_tls=tls, http=http)
    if settings.grpc is None:
        settings = settings.model_copy(update={"grpc": _DEFAULT_ADDRESS})
    from mqdb.process.signals import interruption
    from mqdb.serving.grpc_front import grpc_front_of
    from mqdb.settings.broker_list import brokers_of

    broker = brokers_of(settings)[0]
    with interruption() as interrupted, ExitStack() as stack:
        pool_dsn = settings.pool_dsn_of(broker.name)
        front = stack.enter_context(grpc_front_of(settings, broker.dsn, pool_dsn, shares_port=True))
        assert front is not None
        print("\n".join(["mqdb grpc", *front.lines]), flush=True)
        if http is not None:  # MQDB_HTTP is that of mqdb serve, on the same machine perhaps
            # Nobody else pays for the import of its libraries.
            from mqdb.grpc.traffic import CallTrafficCollector

            collector = CallTrafficCollector(*front.names, front.traffic)
            where = stack.enter_context(metrics_served(settings, front, collector))
            print(f"  metrics  http://{where}/metrics", flush=True)
        print("  end      Ctrl-C", flush=True)
        log_from(context, logging.INFO)
        warn_of_unknown_variables()
        interrupted.wait()
