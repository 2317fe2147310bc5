"""Parts that all Spark commands share: choosing a broker, starting a session, and printing errors in one line."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress, TaskID

    from mqdb.common.dsn import BrokerDsn
    from mqdb.settings import Settings

OneBroker = Annotated[
    str | None,
    typer.Option("--broker", metavar="NAME", help="The broker, if there are several.", show_default=False),
]
Cores = Annotated[
    int, typer.Option("--cores", min=1, max=256, help="Number of tasks that Spark runs at the same time.")
]

DEFAULT_CORES = 2


def chosen_broker(settings: "Settings", name: str | None) -> "BrokerDsn":
    """The broker with this name, or the only broker, after checking that it answers.

    Raises OptionInvalid if there are several brokers and no name is given, and the errors of `BrokerAdmin.check`.
    """
    from mqdb.pipeline.errors import OptionInvalid
    from mqdb.settings.broker_list import brokers_of
    from mqdb_client import Admin

    with Admin(settings=settings) as admin:
        chosen = admin.chosen(None if name is None else [name])
        if len(chosen) > 1:
            names = ", ".join(broker.name for broker in chosen)
            raise OptionInvalid("--broker", None, f"is missing; a job works on one of the brokers {names}")
        # Checked first, because Spark takes seconds to start, and prints a hundred lines about the same error.
        chosen[0].check()
    return next(broker for broker in brokers_of(settings) if broker.name == chosen[0].name)


@contextmanager
def running(
    settings: "Settings", broker: str | None, description: str, cores: int = DEFAULT_CORES
) -> "Iterator[tuple[SparkSession, str]]":
    """Yield a Spark session and the broker's DSN, and show a progress bar until the block ends."""
    one = chosen_broker(settings, broker)
    with bar(description) as (bars, task), spark_session(cores) as spark:
        bars.update(task, total=None)
        yield spark, one.dsn


@contextmanager
def bar(description: str) -> "Iterator[tuple[Progress, TaskID]]":
    """Yield one progress bar, which moves back and forth until its total is set."""
    from mqdb.cli.console import progress, standard_error

    with progress(standard_error()) as bars:
        yield bars, bars.add_task(description, total=None, note="")


@contextmanager
def spark_session(cores: int, config: Mapping[str, str] | None = None) -> "Iterator[SparkSession]":
    """Yield a session on this machine; its failures are raised as errors of mqdb, in one line.

    Raises ExtraMissing, JavaNotFound, JarNotFound, JobFailed.
    """
    from mqdb.pipeline.jobs.job import failures_told, own_session

    with own_session(cores, config) as spark, failures_told():
        yield spark
