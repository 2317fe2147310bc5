"""RocketMQ's own samples, unmodified: `rocketmq-example` from Maven.

A sample is a consumer that runs for ever and a producer that ends, or only one of these. The output shows whether the
sample has done its work. Some samples hard-code the name server 127.0.0.1:9876: a relay listens there while they run.
"""

import re
import selectors
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Final

from tests.fixtures.printing_program import PrintingProgram
from tests.fixtures.program_cache import cached, need

_POM: Final = Path(__file__).resolve().parent / "examples" / "pom.xml"
_STARTED: Final = re.compile("Started")
#: A consumer that does not say when it has started gets this long.
_START_SECONDS: Final = 6.0
_SECONDS: Final = 60.0
_FIXED_PORT: Final = 9876


@dataclass(frozen=True, slots=True)
class Sample:
    """The programs of a sample, and the final number of matches in the output of the consumer, if there is one."""

    name: str
    topic: str
    consumer: str | None
    producer: str | None
    pattern: str
    count: int
    #: The name server is in its code.
    is_fixed: bool = False


_RECEIVED: Final = r"Receive New Messages: \[MessageExt"
_MESSAGE: Final = r"MessageExt \["

SAMPLES: Final = (
    Sample("quickstart", "TopicTest", "quickstart.Consumer", "quickstart.Producer", _RECEIVED, 1000),
    Sample("order", "TopicTest", "ordermessage.Consumer", "simple.Producer", _RECEIVED, 128),
    Sample("order producer", "TopicTestjjj", None, "ordermessage.Producer", "SEND_OK", 100),
    Sample("broadcast", "TopicTest", "broadcast.PushConsumer", "simple.Producer", _RECEIVED, 128),
    Sample("filter by tag", "TagFilterTest", "filter.TagFilterConsumer", "filter.TagFilterProducer", _MESSAGE, 40),
    Sample("filter by SQL", "SqlFilterTest", "filter.SqlFilterConsumer", "filter.SqlFilterProducer", _MESSAGE, 3),
    Sample(
        "schedule by level",
        "TestTopic",
        "schedule.ScheduledMessageConsumer",
        "schedule.ScheduledMessageProducer",
        "Receive message",
        100,
    ),
    Sample(
        "schedule by time",
        "TimerTopic",
        "schedule.TimerMessageConsumer",
        "schedule.TimerMessageProducer",
        "Receive",
        10,
    ),
    Sample("transaction", "TopicTest1234", None, "transaction.TransactionProducer", "SEND_OK", 10),
    Sample("batch", "BatchTest", None, "batch.SimpleBatchProducer", "SEND_OK", 1),
    Sample("batch, split", "BatchTest", None, "batch.SplitBatchProducer", "SEND_OK", 7),
    Sample("simple", "TopicTest", "simple.PushConsumer", "simple.Producer", _RECEIVED, 128),
    Sample("simple, async", "Jodie_topic_1023", None, "simple.AsyncProducer", r"OK [0-9A-F]{32}", 100),
    Sample(
        "simple, oneway", "TopicTest", "simple.PushConsumer", "simple.OnewayProducer", _RECEIVED, 100, is_fixed=True
    ),
    Sample("lite pull", "TopicTest", "simple.LitePullConsumerSubscribe", "simple.Producer", _MESSAGE, 128),
    Sample("lite pull, assign", "TopicTest", "simple.LitePullConsumerAssign", "simple.Producer", _MESSAGE, 16),
    Sample("rpc", "RequestTopic", "rpc.ResponseConsumer", "rpc.RequestProducer", "handle message", 1, is_fixed=True),
)


def _start(name: str, server: str, jars: Path, home: Path) -> PrintingProgram:
    """Start a class of the samples."""
    options = (f"-Duser.home={home}", f"-Drocketmq.namesrv.addr={server}", "-XX:TieredStopAtLevel=1", "-Xmx512m")
    command = ["java", *options, "-cp", f"{jars}/*", f"org.apache.rocketmq.example.{name}"]
    return PrintingProgram(command, home)


def run_sample(sample: Sample, server: str) -> str | None:
    """Run a sample with a server that has its topic.

    Returns None on success, else the problem. Raises ProgramMissing.
    """
    need("java")
    maven = ("mvn", "--batch-mode", "--quiet", "--file", str(_POM), "dependency:copy-dependencies")
    jars = cached("examples", [_POM], ["mvn", "javac"], [*maven, "-DoutputDirectory={}"])
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="mqdb-samples-")))
        if sample.is_fixed:
            stack.enter_context(relay(_FIXED_PORT, server))
        seen: PrintingProgram | None = None
        if sample.consumer is not None:
            seen = _start(sample.consumer, server, jars, home)
            stack.callback(seen.stop)
            seen.wait_for(_STARTED, 1, _START_SECONDS)
        if sample.producer is not None:
            producer = _start(sample.producer, server, jars, home)
            stack.callback(producer.stop)
            seen = seen or producer
        assert seen is not None
        if seen.wait_for(sample.pattern, sample.count, _SECONDS):
            return None
        found = seen.count(sample.pattern)
        return f"{found} of {sample.count} came; the last output is: {seen.output[-1_500:]}"


@contextmanager
def relay(port: int, server: str) -> Iterator[None]:
    """Relay connections on the port to the server. Raises OSError if the port is taken."""
    host, _, number = server.rpartition(":")
    with socket.create_server(("127.0.0.1", port)) as listening:
        ends: list[socket.socket] = []
        thread = Thread(target=_accept, args=(listening, (host, int(number)), ends), daemon=True)
        thread.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for end in ends:
                end.close()


def _accept(listening: socket.socket, address: tuple[str, int], ends: list[socket.socket]) -> None:
    selector = selectors.DefaultSelector()
    selector.register(listening, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listening:
                try:
                    near, _ = listening.accept()
                except OSError:
                    return
                far = socket.create_connection(address)
                ends += [near, far]
                selector.register(near, selectors.EVENT_READ, far)
                selector.register(far, selectors.EVENT_READ, near)
                continue
            end = key.fileobj
            assert isinstance(end, socket.socket)
            try:
                data = end.recv(1 << 16)
                key.data.sendall(data)
            except OSError:
                data = b""
            if not data:
                selector.unregister(end)
                with suppress(OSError):
                    key.data.shutdown(socket.SHUT_WR)
