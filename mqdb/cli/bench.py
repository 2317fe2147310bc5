"""`mqdb bench`: the speed of a broker for clients on this machine.

The benchmark is one process with threads that uses the public client, like a program of yours. Benchmarks of PostgreSQL
alone with the same rows, and of single parts, are in the checkout: `python3 do.py bench`.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from mqdb.cli.options import Command, command_group, start
from mqdb.errors import BrokerUnavailable, GroupNotFound, ParameterInvalid

if TYPE_CHECKING:
    import psycopg

    from mqdb.settings import Settings
    from mqdb_client.admin.admin import BrokerAdmin

app = command_group(
    """Measure a broker: how fast it accepts messages, and how soon consumers get them.

    The benchmark runs on a fresh embedded PostgreSQL, which is removed afterwards. It uses your own database only if
    [bold]--dsn[/bold] is given on the command line; MQDB_DSN is ignored. The topic of the benchmark is deleted at the
    end; its records are dropped by retention.

    \b
    [bold]Examples[/bold]
      mqdb bench produce
      mqdb bench produce --threads 1 --time 5
      mqdb bench consume --messages 500000
      mqdb bench latency --rate 500
      mqdb bench dispatch --json
    """
)

_BODY_BYTES: Final = 200
_BATCH: Final = 1_000

_ENDS: Final = "SELECT sum(max_offset)::bigint FROM mqdb.queue_ends JOIN mqdb.topic USING (topic_id) WHERE topic = %s"

#: The benchmark gives up after this time without any message.
_PATIENCE_SECONDS: Final = 60.0

Seconds = Annotated[float, typer.Option("--time", "-T", min=0.1, max=86_400, help="Seconds.")]
Messages = Annotated[int, typer.Option("--messages", "-n", min=1, max=100_000_000, help="Messages.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


class Figure(NamedTuple):
    """The result of a measurement. Durations are in seconds, ascending."""

    name: str
    messages: int
    seconds: float
    durations: list[float]

    def described(self) -> dict[str, Any]:
        """The figure for people and programs, with messages a second and milliseconds."""
        described: dict[str, Any] = {
            "figure": self.name,
            "messages": self.messages,
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(self.messages / self.seconds),
        }
        if self.durations:
            last = len(self.durations) - 1
            at = {"median_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
            described |= {name: round(1000 * self.durations[round(share * last)], 3) for name, share in at.items()}
        return described


class _Bed(NamedTuple):
    """The setting of a benchmark: one broker, with a topic and a group for this run only."""

    settings: "Settings"
    admin: "BrokerAdmin"
    topic: str
    group: str

    def message(self, body: bytes = b"." * _BODY_BYTES) -> Any:
        from mqdb_client import Message

        return Message(self.topic, body, tag="bench")

    def fill(self, messages: int, connection: Any = None) -> None:
        """Send this many messages, in batches."""
        from mqdb_client import Producer

        with Producer(self.group, settings=self.settings) as producer:
            for first in range(0, messages, _BATCH):
                batch = [self.message() for _ in range(min(_BATCH, messages - first))]
                producer.send_batch(batch, connection=connection)


@app.command(cls=Command)
def produce(
    context: typer.Context,
    threads: Annotated[int, typer.Option("--threads", "-c", min=1, max=1_000, help="Number of sending threads.")] = 16,
    seconds: Seconds = 5.0,
    batch: Annotated[int, typer.Option("--batch", min=1, max=10_000, help="Messages in each batch.")] = 100,
    as_json: Json = False,
) -> None:
    """Measure how fast the threads of one producer send: single messages first, then batches.

    The result is the messages a second, and the duration of each call.

    \b
    [bold]Examples[/bold]
      mqdb bench produce
      mqdb bench produce --threads 1 --batch 1000 --time 10
    """
    with _bed(context) as bed:
        from mqdb_client import Producer

        with Producer(bed.group, settings=bed.settings) as producer:
            figures = [
                _sent("send", threads, seconds, 1, lambda: producer.send(bed.message())),
                _sent("send_batch", threads, seconds, batch, lambda: producer.send_batch([bed.message()] * batch)),
            ]
    _show(figures, as_json)


@app.command(cls=Command)
def consume(context: typer.Context, messages: Messages = 200_000, as_json: Json = False) -> None:
    """Measure how fast a push consumer with 20 threads reads waiting messages, up to 32 in each call.

    The result is the messages a second, from the start of the consumer to its last message.

    \b
    [bold]Examples[/bold]
      mqdb bench consume
      mqdb bench consume --messages 1000000 --json
    """
    with _bed(context) as bed:
        bed.fill(messages)
        done = _Countdown(messages)
        with _consumer(bed, lambda batch: done.less(len(batch)), consume_message_batch_max_size=32):
            began = time.monotonic()
            done.wait()
            took = time.monotonic() - began
    _show([Figure("consume", messages, took, [])], as_json)


@app.command(cls=Command)
def latency(
    context: typer.Context,
    rate: Annotated[float, typer.Option("--rate", min=0.1, max=100_000, help="Messages a second.")] = 100.0,
    seconds: Seconds = 10.0,
    as_json: Json = False,
) -> None:
    """Measure how soon messages, sent one by one at a fixed rate, reach a listener in the same process.

    \b
    [bold]Examples[/bold]
      mqdb bench latency
      mqdb bench latency --rate 500 --time 30
    """
    messages = max(1, round(rate * seconds))
    taken: list[float] = []
    with _bed(context) as bed:
        from mqdb_client import Producer

        done = _Countdown(messages)

        def take(batch: list[Any]) -> None:
            now = time.monotonic_ns()
            taken.extend((now - int(message.body)) / 1e9 for message in batch)
            done.less(len(batch))

        with _consumer(bed, take), Producer(bed.group, settings=bed.settings) as producer:
            began = time.monotonic()
            for number in range(messages):
                time.sleep(max(0.0, began + number / rate - time.monotonic()))  # keep to the requested rate
                producer.send(bed.message(b"%d" % time.monotonic_ns()))
            took = time.monotonic() - began
            done.wait()
    _show([Figure("latency", messages, took, sorted(taken))], as_json)


@app.command(cls=Command)
def dispatch(context: typer.Context, messages: Messages = 100_000, as_json: Json = False) -> None:
    """Measure how fast messages get their offsets after one large transaction commits.

    \b
    [bold]Examples[/bold]
      mqdb bench dispatch
      mqdb bench dispatch --messages 1000000
    """
    with _bed(context) as bed:
        import psycopg

        with psycopg.connect(bed.settings.brokers[0].dsn, application_name="mqdb bench") as connection:
            bed.fill(messages, connection)
            began = time.monotonic()  # the dispatcher may be faster than the answer to the commit
            connection.commit()
            _await_offsets(connection, bed.topic, messages)
            took = time.monotonic() - began
    _show([Figure("dispatch", messages, took, [])], as_json)


# -- what they have in common -----------------------------------------------------------------


@contextmanager
def _bed(context: typer.Context) -> Iterator[_Bed]:
    settings = start(context)
    from mqdb.cli.console import standard_error
    from mqdb.cli.demo.broker import BrokerProcess
    from mqdb.embedded import temporary_home
    from mqdb_client import Admin

    with standard_error().status("measuring"), ExitStack() as stack:
        # MQDB_DSN may lead to a production broker; a benchmark uses a database only if --dsn names it.
        if settings.dsn is None or settings.origin("dsn") != "argument":
            home = stack.enter_context(temporary_home())
            settings = settings.model_copy(update={"dsn": None, "pool_dsn": None, "home": home, "port": 0})
            broker = stack.enter_context(BrokerProcess(settings))
            settings = settings.model_copy(update={"dsn": f"{settings.broker_name}={broker.wait_until_started()}"})
        elif len(settings.brokers) > 1:
            raise ParameterInvalid(
                "--dsn", settings.shown("dsn"), "names several brokers; mqdb bench needs exactly one"
            )
        [admin] = stack.enter_context(Admin(settings=settings)).chosen()
        name = f"mqdb_bench_{token_hex(4)}"
        admin.topics.create(name)
        stack.callback(admin.topics.delete, name, force=True)
        yield _Bed(settings, admin, name, name)


@contextmanager
def _consumer(bed: _Bed, take: Callable[[list[Any]], None], **options: Any) -> Iterator[None]:
    from mqdb_client import ConsumeConcurrentlyStatus, ConsumeFromWhere, PushConsumer

    def listener(batch: list[Any]) -> ConsumeConcurrentlyStatus:
        take(batch)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    where = ConsumeFromWhere.FIRST_OFFSET
    consumer = PushConsumer(bed.group, settings=bed.settings, consume_from_where=where, **options)
    consumer.subscribe(bed.topic)
    consumer.register_listener(listener)
    try:
        with consumer:
            yield
    finally:
        with suppress(GroupNotFound):  # the start has failed
            bed.admin.groups.delete(bed.group, with_topics=True)


class _Countdown:
    """Waits until the given number of messages has arrived. Any thread may count messages down."""

    def __init__(self, messages: int) -> None:
        self._left = messages
        self._changed = threading.Condition()

    def less(self, messages: int) -> None:
        with self._changed:
            self._left -= messages
            self._changed.notify()

    def wait(self) -> None:
        """Wait until the count is zero; raises BrokerUnavailable if no message arrives for a minute."""
        with self._changed:
            while self._left > 0:
                if not self._changed.wait(_PATIENCE_SECONDS):
                    raise BrokerUnavailable(
                        "mqdb bench", f"no message for a minute, and {self._left:,} have not arrived"
                    )


def _await_offsets(connection: "psycopg.Connection[Any]", topic: str, messages: int) -> None:
    """Wait until a topic has this many messages with offsets.

    Raises BrokerUnavailable if no message gets an offset for a minute.
    """
    done, moved_at = 0, time.monotonic()
    while done < messages:
        time.sleep(0.01)  # only owners of queues are notified of arrivals
        row = connection.execute(_ENDS, (topic,)).fetchone()
        connection.commit()
        before, done, now = done, row[0] if row else 0, time.monotonic()
        moved_at = now if done > before else moved_at
        if now - moved_at > _PATIENCE_SECONDS:
            raise BrokerUnavailable(
                "mqdb bench", "no message has received its offset for a minute; is `mqdb serve` running?"
            )


def _sent(name: str, threads: int, seconds: float, messages: int, send: Callable[[], object]) -> Figure:
    """Call `send` in several threads until the time is over. Raises any error of `send`."""
    from concurrent.futures import ThreadPoolExecutor

    began = time.monotonic()

    def run() -> list[float]:
        took = []
        while (at := time.monotonic()) - began < seconds:
            send()
            took.append(time.monotonic() - at)
        return took

    with ThreadPoolExecutor(threads) as pool:
        runs = [pool.submit(run) for _ in range(threads)]
        durations = sorted(each for done in runs for each in done.result())
    return Figure(name, messages * len(durations), time.monotonic() - began, durations)


def _show(figures: list[Figure], as_json: bool) -> None:
    described = [figure.described() for figure in figures]
    if as_json:
        print(json.dumps({"figures": described}))
        return
    from mqdb.cli.console import standard_output, table

    columns = list(described[0])
    rows = [[each[column] for column in columns] for each in described]
    standard_output().print(table(columns, rows, right=columns[1:]))
