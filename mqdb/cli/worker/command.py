"""`mqdb worker TARGET`: run the listeners and crons of an application."""

import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.options import given, log_from, start, warn_of_unknown_variables
from mqdb.serving.metrics import metrics_served

if TYPE_CHECKING:
    from mqdb.cli.worker.supervisor import Supervisor


def worker(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="MODULE:NAME of the App.", show_default=False)],
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, max=1_000, help="The number of processes.")] = 1,
    groups: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Run only the listeners of these groups.", show_default=False)
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a Python file in this directory changes.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Exit when all messages are consumed; for tests.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Remove crons that are no longer in the code.")] = False,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address for /healthz, /readyz and /metrics.", show_default=False),
    ] = None,
) -> None:
    """Run the listeners and crons of an application until Ctrl-C or SIGTERM.

    TARGET names a module and an App in it, as Python would import them from the current directory. A process that exits
    is replaced by a new one. On the first signal, processes finish the messages that they are consuming and leave their
    groups; a second signal kills the processes. The exit code is 0 on success; 1 if a process failed to stop in order,
    or if a message failed with --once; and 78 if the application cannot run until its code or settings are corrected,
    or until an extra is installed, so that a process manager does not restart it.

    \b
    [bold]Examples[/bold]
      mqdb worker shop.tasks:app
      mqdb worker shop.tasks:app --processes 4 --groups billing,audit
      mqdb worker shop.tasks:app --reload
      mqdb worker shop.tasks:app --processes 4 --http 127.0.0.1:8091
    """
    from mqdb.cli.worker.order import METRICS_DIRECTORY, Order
    from mqdb.cli.worker.supervisor import Supervisor
    from mqdb.errors import ParameterInvalid

    settings = start(context, http=http)
    log_from(context, logging.INFO)
    warn_of_unknown_variables()
    names = tuple(name.strip() for name in (groups or "").split(",") if name.strip())
    if groups is not None and not names:
        raise ParameterInvalid("groups", groups, "names no group; omit the option to run all groups")
    home, config = given(context, "home"), given(context, "config")
    order = Order(
        target,
        names,
        dsn=given(context, "dsn"),
        home=None if home is None else str(home),
        config=None if config is None else str(config),
        log_level=logging.WARNING - 10 * given(context, "verbose", 0),
        log_format=given(context, "log_format", "text"),
        is_once=once,
        prunes=prune,
        is_measured=http is not None,
    )
    count = 1 if once else processes
    with ExitStack() as stack:
        environment = dict(os.environ)
        if http is not None:
            environment[METRICS_DIRECTORY] = stack.enter_context(tempfile.TemporaryDirectory(prefix="mqdb-worker-"))
        supervisor = Supervisor(order, count, environment, reloads=reload)
        if http is not None:
            from mqdb.web.process_metrics import ProcessMetrics

            metrics = ProcessMetrics(environment[METRICS_DIRECTORY])
            where = stack.enter_context(metrics_served(settings, supervisor, metrics))
            print(f"  metrics  http://{where}/metrics", flush=True)
        if reload:
            stack.enter_context(_watched(supervisor))
        print(
            f"mqdb worker of {target}, {count} {'process' if count == 1 else 'processes'}; Ctrl-C ends it", flush=True
        )
        code = supervisor.run()
    raise typer.Exit(code)


@contextmanager
def _watched(supervisor: "Supervisor") -> Iterator[None]:
    """Make the supervisor reload when a Python file in this directory changes."""
    from watchfiles import PythonFilter, watch

    is_over = threading.Event()

    def look() -> None:
        for _ in watch(".", watch_filter=PythonFilter(), stop_event=is_over, raise_interrupt=False):
            supervisor.reload()

    thread = threading.Thread(target=look, name="worker-reload", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
