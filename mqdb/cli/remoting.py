"""`mqdb remoting`: only the front for RocketMQ's clients, for a broker that another process serves."""

import logging
from contextlib import ExitStack
from typing import Annotated, Final

import typer

from mqdb.cli.options import log_from, start, warn_of_unknown_variables
from mqdb.serving.metrics import metrics_served

_DEFAULT_ADDRESS: Final = "127.0.0.1:9876"


def remoting(
    context: typer.Context,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help=f"Address to serve on; MQDB_REMOTING, or {_DEFAULT_ADDRESS}."),
    ] = None,
    advertised: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address that clients use, if it differs; MQDB_REMOTING_ADVERTISED."),
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address for /healthz, /readyz and /metrics.")
    ] = None,
) -> None:
    """Serve clients that use RocketMQ's remoting protocol: Java, Go, C++, Node, Spring.

    Name server and broker have the same address. With MQDB_REMOTING=127.0.0.1:9876, mqdb serve also serves these
    clients. Several of these processes can serve one broker behind a TCP load balancer, whose address they advertise.
    Any address except loopback needs either an access key with a secret (mqdb acl secret), or MQDB_REMOTING_OPEN=true,
    which lets every client that can connect do everything.

    \b
    [bold]Examples[/bold]
      mqdb remoting
      mqdb remoting --dsn postgresql://mqdb@db.example.org/mqdb
      mqdb remoting --address 0.0.0.0:9876 --advertised 192.0.2.10:9876
      mqdb remoting --http 127.0.0.1:8090
    """
    settings = start(context, remoting=address, remoting_advertised=advertised, http=http)
    if settings.remoting is None:
        settings = settings.model_copy(update={"remoting": _DEFAULT_ADDRESS})
    from mqdb.process.signals import interruption
    from mqdb.serving.front import front_of
    from mqdb.settings.broker_list import brokers_of

    broker = brokers_of(settings)[0]
    with interruption() as interrupted, ExitStack() as stack:
        front = stack.enter_context(front_of(settings, broker.dsn, settings.pool_dsn_of(broker.name)))
        assert front is not None
        print(f"mqdb remoting\n  remoting {front.address}", flush=True)
        if http is not None:  # MQDB_HTTP may belong to an mqdb serve on the same machine
            # Imported here, so that only this option pays for loading these libraries.
            from mqdb.remoting.session.metrics import TrafficCollector

            collector = TrafficCollector(*front.names, front.traffic)
            where = stack.enter_context(metrics_served(settings, front, collector))
            print(f"  metrics  http://{where}/metrics", flush=True)
        print("  end      Ctrl-C", flush=True)
        log_from(context, logging.INFO)
        warn_of_unknown_variables()
        interrupted.wait()
