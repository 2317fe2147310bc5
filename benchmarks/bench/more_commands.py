"""`do.py bench filter | schedule | grow | spark`: benchmarks for developers of mqdb, beside those of `commands`."""

from functools import partial
from typing import Annotated

import typer

from benchmarks.bench.commands import Hold, HoldSend, Json, Only, Pairs, Rounds, Seconds, app
from mqdb.cli.options import Command


@app.command("filter", cls=Command)
def filter_(
    context: typer.Context,
    messages: Annotated[int, typer.Option("--messages", min=1, help="Messages in the queues.")] = 500_000,
    seconds: Seconds = 5.0,
    rounds: Rounds = 5,
    hold_transaction: Hold = False,
    hold_send: HoldSend = False,
    pairs: Pairs = 0,
    only: Only = None,
    as_json: Json = False,
) -> None:
    """Measure the rate at which pulls with a filter get through a queue.

    \b
    [bold]Examples[/bold]
      python3 do.py bench filter
      python3 do.py bench filter --only tag-1000 --messages 5000000
    """
    from benchmarks.bench import filter as filters
    from benchmarks.bench.running import Options, run

    run(
        context,
        Options("filter", filters.NAMES, rounds, hold_transaction, hold_send, pairs, only, as_json),
        partial(filters.comparisons, messages=messages, seconds=seconds),
        {"messages": messages, "seconds": seconds, "connections": 1},
        ["load: one process; nobody sends or dispatches meanwhile"],
    )


@app.command(cls=Command)
def schedule(
    context: typer.Context,
    messages: Annotated[
        int, typer.Option("--waiting", min=0, help="Number of waiting messages, half in levels, half timers.")
    ] = 1_000_000,
    rate: Annotated[float, typer.Option("--rate", min=1, help="Messages that fall due per second.")] = 10_000.0,
    seconds: Seconds = 5.0,
    rounds: Rounds = 3,
    hold_transaction: Hold = False,
    hold_send: HoldSend = False,
    pairs: Pairs = 0,
    only: Only = None,
    as_json: Json = False,
) -> None:
    """Measure the delay of messages that wait for their time, and the cost of a million waiting messages.

    \b
    [bold]Examples[/bold]
      python3 do.py bench schedule
      python3 do.py bench schedule --only timers --rate 5000 --hold-transaction --pairs 5
    """
    from benchmarks.bench import schedule
    from benchmarks.bench.running import Options, run

    run(
        context,
        Options("schedule", schedule.NAMES, rounds, hold_transaction, hold_send, pairs, only, as_json),
        partial(schedule.comparisons, messages=messages, rate=rate, seconds=seconds),
        {"waiting": messages, "rate": rate, "seconds": seconds},
        [
            "load: a process that serves; what waits is stored by INSERT ... SELECT before the clock starts",
            "late: from the time that a message waits for until its offset is visible to others",
        ],
    )


@app.command(cls=Command)
def grow(
    context: typer.Context,
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="NUMBERS", help="Messages in the log, one size after the other.")
    ] = "1000000,10000000",
    segment_records: Annotated[
        int | None,
        typer.Option(
            "--segment-records", min=100, help="Messages of a segment; unset, as many as mqdb serve would choose."
        ),
    ] = None,
    rounds: Rounds = 5,
    only: Only = None,
    as_json: Json = False,
) -> None:
    """Measure how the cost of each action grows with the number of messages in the log.

    Fills a log in steps and measures at each: sends, dispatch, pulls, look-ups, lists, pages of the dashboard,
    retention, the comparison after a restore, the start of the services.

    Needs about 0.7 GB of disk for each million messages, in the directory for temporary files, or in that of --home.
    It never touches your own databases. Small segments show how the number of segments affects the cost.

    \b
    [bold]Examples[/bold]
      python3 do.py bench grow
      python3 do.py bench grow --sizes 1000000,10000000,100000000 --home /data/bench
      python3 do.py bench grow --sizes 100000,1000000 --only key --only id
      python3 do.py bench grow --sizes 4000,40000,400000 --segment-records 100
    """
    from benchmarks.bench import grow as growth
    from benchmarks.bench.growing import run_grow
    from benchmarks.bench.running import Options

    options = Options("grow", growth.NAMES, rounds, False, False, 0, only, as_json, most_brokers=0)
    run_grow(context, options, sizes, segment_records)


@app.command(cls=Command)
def spark(
    context: typer.Context,
    messages: Annotated[int, typer.Option("--messages", min=1, help="Messages to be read, or written.")] = 1_000_000,
    rounds: Rounds = 3,
    hold_transaction: Hold = False,
    hold_send: HoldSend = False,
    pairs: Pairs = 0,
    only: Only = None,
    as_json: Json = False,
) -> None:
    """Measure the rates at which Spark reads a topic, writes one, and follows one in micro-batches.

    Needs pip install "mqdb\\[spark]", and Java or the one that comes with it.

    \b
    [bold]Examples[/bold]
      python3 do.py bench spark
      python3 do.py bench spark --only read-mqdb --messages 200000
    """
    from benchmarks.bench import spark
    from benchmarks.bench.running import Options, run

    run(
        context,
        Options("spark", spark.NAMES, rounds, hold_transaction, hold_send, pairs, only, as_json),
        partial(spark.comparisons, messages=messages),
        {"messages": messages, "body_bytes": "about 190, flights as JSON"},
        [
            "load: one Spark process with its Python workers; its CPU time includes both",
            "micro-batches are timed by Spark: from their trigger until their commit",
        ],
    )
