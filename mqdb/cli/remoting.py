"""`mqdb remoting`: the front for RocketMQ's clients alone, for a broker that is served elsewhere."""

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
        str | None, typer.Option(metavar="HOST:PORT", help=f"Where to serve; MQDB_REMOTING, or {_DEFAULT_ADDRESS}.")
    ] = None,
    advertised: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where clients find it, if elsewhere; MQDB_REMOTING_ADVERTISED."),
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to serve /healthz, /readyz and /metrics.")
    ] = None,
) -> None:
    """Serve clients that speak RocketMQ's remoting protocol: Java, Go, C++, Node, Spring.

    They find name server and broker at one address. With
    MQDB_REMOTING=127.0.0.1:9876 mqdb serve serves them too. Several of these
    processes may serve one broker, behind a TCP balancer whose address they
    advertise. Any address but loopback needs an access key with a secret (mqdb
    acl secret), or MQDB_REMOTING_OPEN=true, with which any client that reaches
    it may do everything.

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
        if http is not None:  # MQDB_HTTP is that of mqdb serve, on the same machine perhaps
            # Nobody else pays for the import of its libraries.
            from mqdb.remoting.session.metrics import TrafficCollector

            collector = TrafficCollector(*front.names, front.traffic)
            where = stack.enter_context(metrics_served(settings, front, collector))
            print(f"  metrics  http://{where}/metrics", flush=True)
        print("  end      Ctrl-C", flush=True)
        log_from(context, logging.INFO)
        warn_of_unknown_variables()
        interrupted.wait()
