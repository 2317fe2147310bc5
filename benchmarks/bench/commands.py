"""`do.py bench produce | consume | latency | dispatch`."""

from functools import partial
from typing import Annotated

import typer

from mqdb.cli.options import Command, command_group

app = command_group(
    """Measure mqdb on this machine, and beside it what PostgreSQL itself does with the same rows.

    Runs on a fresh embedded PostgreSQL, which is removed afterwards.

    On a database of yours only if [bold]--dsn[/bold] is given here: MQDB_DSN does not count. Topics of its own go
    at the end, their records when retention drops them.

    \b
    [bold]Examples[/bold]
      python3 do.py bench produce
      python3 do.py bench latency --rate 500
      python3 do.py bench dispatch --hold-transaction --pairs 5
      python3 do.py bench produce --dsn "broker-a=postgresql://...;broker-b=postgresql://..."
    """
)

Connections = Annotated[
    int, typer.Option("--connections", "-c", min=1, max=150, help="Connections of append, batch and their references.")
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes over which these connections are divided.")]
Seconds = Annotated[float, typer.Option("--time", "-T", min=0.05, help="Seconds of a round.")]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Rounds; each measures all sides, one after the other.")]
Hold = Annotated[bool, typer.Option("--hold-transaction", help="Keep a transaction open in another session.")]
HoldSend = Annotated[
    bool, typer.Option("--hold-send", help="Keep a transaction open in which a producer has sent to each queue.")
]
Pairs = Annotated[
    int, typer.Option("--pairs", min=0, help="Instead, compare rounds with and without one, so many times in turn.")
]
Only = Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Only the figures of these names.")]
Async = Annotated[bool, typer.Option("--async", help="Only what asyncio programs have, beside threads.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]


@app.command(cls=Command)
def produce(
    context: typer.Context,
    connections: Connections = 16,
    jobs: Jobs = 2,
    seconds: Seconds = 2.0,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Messages of a batch.")] = 100,
    rounds: Rounds = 5,
    hold_transaction: Hold = False,
    hold_send: HoldSend = False,
    pairs: Pairs = 0,
    only: Only = None,
    is_async: Async = False,
    as_json: Json = False,
) -> None:
    """Measure the rate at which messages get into the commit log.

    append and batch are about the database, the others about the client: one process, one producer.

    \b
    [bold]Examples[/bold]
      python3 do.py bench produce -c 16 -T 5
      python3 do.py bench produce --only append --only send-64 --hold-send --pairs 5
      python3 do.py bench produce --async
    """
    from benchmarks.bench import produce
    from benchmarks.bench.running import Options, run

    load = (
        f"load of append and batch: {connections} threads in {min(jobs, connections)} processes, which call libpq with "
        "prepared statements and values encoded beforehand; of the others: one process with the client, or psycopg"
    )
    run(
        context,
        Options(
            "produce",
            produce.NAMES,
            rounds,
            hold_transaction,
            hold_send,
            pairs,
            [*(only or ()), *produce.ASYNC] if is_async else only,
            as_json,
            most_brokers=2,
        ),
        partial(
            produce.comparisons, connections=connections, jobs=jobs, seconds=seconds, batch=batch, is_async=is_async
        ),
        {"connections": connections, "jobs": jobs, "seconds": seconds, "batch": batch},
        [load, "no dispatcher runs"],
    )


@app.command(cls=Command)
def consume(
    context: typer.Context,
    messages: Annotated[int, typer.Option("--messages", min=1, help="Messages to be consumed.")] = 500_000,
    seconds: Seconds = 5.0,
    rounds: Rounds = 5,
    hold_transaction: Hold = False,
    hold_send: HoldSend = False,
    pairs: Pairs = 0,
    only: Only = None,
    is_async: Async = False,
    as_json: Json = False,
) -> None:
    """Measure the rate at which messages come out, by pulls and by a push consumer.

    \b
    [bold]Examples[/bold]
      python3 do.py bench consume
      python3 do.py bench consume --only consume-32 --messages 1000000
    """
    from benchmarks.bench import consume
    from benchmarks.bench.running import Options, run

    run(
        context,
        Options(
            "consume",
            consume.NAMES,
            rounds,
            hold_transaction,
            hold_send,
            pairs,
            [*(only or ()), *consume.ASYNC] if is_async else only,
            as_json,
        ),
        partial(consume.comparisons, messages=messages, seconds=seconds),
        {"messages": messages, "seconds": seconds, "connections": 1},
        ["load: one process; nobody sends or dispatches meanwhile"],
    )


@app.command(cls=Command)
def latency(
    context: typer.Context,
    rate: Annotated[float, typer.Option("--rate", min=1, help="Messages per second.")] = 500.0,
    seconds: Seconds = 10.0,
    rounds: Rounds = 3,
    hold_transaction: Hold = False,
    hold_send: HoldSend = False,
    pairs: Pairs = 0,
    topics: Annotated[
        int, typer.Option("--topics", min=1, help="Also measure one consumer of so many topics, and its start.")
    ] = 1,
    only: Only = None,
    is_async: Async = False,
    as_json: Json = False,
) -> None:
    """Measure the time of a message from send to listener, at a steady rate.

    \b
    [bold]Examples[/bold]
      python3 do.py bench latency --rate 500 -T 30
      python3 do.py bench latency --hold-transaction --pairs 5
      python3 do.py bench latency --rate 200 --topics 1000
    """
    from benchmarks.bench import latency
    from benchmarks.bench.running import Options, run

    run(
        context,
        Options(
            "latency",
            latency.NAMES if topics > 1 else latency.NAMES[:-1],
            rounds,
            hold_transaction,
            hold_send,
            pairs,
            [*(only or ()), *latency.ASYNC] if is_async else only,
            as_json,
        ),
        partial(latency.comparisons, rate=rate, seconds=seconds, topics=topics),
        {"rate": rate, "seconds": seconds, "topics": topics},
        ["load: a process that sends and one that consumes, beside the one that serves"],
    )


@app.command(cls=Command)
def dispatch(
    context: typer.Context,
    messages: Annotated[int, typer.Option("--messages", min=1, help="Messages of a backlog.")] = 1_000_000,
    rounds: Rounds = 3,
    hold_transaction: Hold = False,
    hold_send: HoldSend = False,
    pairs: Pairs = 0,
    only: Only = None,
    as_json: Json = False,
) -> None:
    """Measure the rate at which a backlog gets its queue offsets, and its entries in the key index.

    \b
    [bold]Examples[/bold]
      python3 do.py bench dispatch
      python3 do.py bench dispatch --messages 200000 --only dispatch
    """
    from benchmarks.bench import dispatch
    from benchmarks.bench.running import Options, run
    from mqdb.broker.dispatch import MAX_ROWS

    run(
        context,
        Options("dispatch", dispatch.NAMES, rounds, hold_transaction, hold_send, pairs, only, as_json),
        partial(dispatch.comparisons, messages=messages),
        {"messages": messages, "batch": MAX_ROWS, "connections": 1},
        ["load: one session, whose CPU is shown; the backlog is filled by INSERT ... SELECT before the clock starts"],
    )
