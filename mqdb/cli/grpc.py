"""`mqdb grpc`: only the front for RocketMQ 5's SDKs, for a broker that another process serves."""

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
        str | None, typer.Option(metavar="HOST:PORT", help=f"Address to serve on; MQDB_GRPC, or {_DEFAULT_ADDRESS}.")
    ] = None,
    tls: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Additional address to serve on with TLS; MQDB_GRPC_TLS.")
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address for /healthz, /readyz and /metrics.")
    ] = None,
) -> None:
    """Serve RocketMQ 5's SDKs for Java, Go, Python, Node, C#, C++ and Rust.

    These SDKs use gRPC, and consume by pop. With MQDB_GRPC=127.0.0.1:8081, mqdb serve also serves them. Several of
    these processes can listen on one port and share the connections, for example one process for each core. Any address
    except loopback needs either an access key with a secret (mqdb acl secret), or MQDB_GRPC_OPEN=true, which lets every
    client that can connect do everything.

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
        if http is not None:  # MQDB_HTTP may belong to an mqdb serve on the same machine
            # Imported here, so that only this option pays for loading these libraries.
            from mqdb.grpc.traffic import CallTrafficCollector

            collector = CallTrafficCollector(*front.names, front.traffic)
            where = stack.enter_context(metrics_served(settings, front, collector))
            print(f"  metrics  http://{where}/metrics", flush=True)
        print("  end      Ctrl-C", flush=True)
        log_from(context, logging.INFO)
        warn_of_unknown_variables()
        interrupted.wait()
