"""RocketMQ's published examples for its Java and Go SDKs, each run as published.

The examples come from the sources jar in Maven, and from the SDK's Go module. The examples hard-code the endpoint,
names and keys. Each of these words is replaced by an environment variable, and nothing else is changed. A consumer runs
for ever or for minutes; its output lists the messages that it received.
"""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from mqdb.common.group import ConsumeMode
from mqdb.grpc.front import GrpcFront
from mqdb_client import Admin
from tests.fixtures.printing_program import PrintingProgram
from tests.fixtures.processes import wait_until
from tests.fixtures.program_cache import ProgramMissing, cached, need
from tests.fixtures.sdk_programs import java_command, java_jars, new_prefix

_FOLDER: Final = Path(__file__).resolve().parent
_POM: Final = _FOLDER / "java" / "pom.xml"
_GO_FILES: Final = (_FOLDER / "go" / "go.mod", _FOLDER / "go" / "go.sum")
_GO_MODULE: Final = "github.com/apache/rocketmq-clients/golang/v5"
_JAVA_PACKAGE: Final = "org.apache.rocketmq.client.java.example"

_SECONDS: Final = 40.0

KEY: Final = ("examples", "a secret of theirs")

#: A word of the Java code, and the name of its answer in the environment.
_JAVA_WORDS: Final[Mapping[str, str]] = {
    r'"foobar\.com:8080"': "EXAMPLE_Endpoint",
    r'"your\w*Topic"': "EXAMPLE_Topic",
    r'"yourConsumerGroup"': "EXAMPLE_ConsumerGroup",
    r'"yourAccessKey"': "EXAMPLE_AccessKey",
    r'"yourSecretKey"': "EXAMPLE_SecretKey",
}
_GO_WORDS: Final = re.compile(
    r'^\t(Topic|Endpoint|ConsumerGroup|AccessKey|SecretKey|NameSpace)( *)= ".*"$', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Example:
    """A producer, the consumer that runs beside it, and the number of pattern matches that indicates success."""

    language: str
    producer: str
    consumer: str | None
    #: In the consumer's output, or in the producer's if it runs alone.
    pattern: str
    count: int
    is_ordered: bool = False
    is_acked: bool = True

    @property
    def name(self) -> str:
        """The name of the example in messages."""
        return " ".join(filter(None, (self.language, self.producer, self.consumer)))


_JAVA_PUSH: Final = "PushConsumerExample"
_JAVA_GOT: Final = "Consume message=MessageViewImpl"
_JAVA_DONE: Final = "Message is acknowledged successfully"
_GO_PUSH: Final = "consumer/push_consumer"
_GO_GOT: Final = r"(?m)^&\{01[0-9A-F]{32} "

EXAMPLES: Final = (
    Example("java", "ProducerNormalMessageExample", _JAVA_PUSH, _JAVA_GOT, 1),
    Example("java", "AsyncProducerExample", _JAVA_PUSH, _JAVA_GOT, 1),
    Example("java", "ProducerFifoMessageExample", _JAVA_PUSH, _JAVA_GOT, 1, is_ordered=True),
    Example("java", "ProducerDelayMessageExample", _JAVA_PUSH, _JAVA_GOT, 1),
    Example("java", "ProducerTransactionMessageExample", _JAVA_PUSH, _JAVA_GOT, 1),
    Example("java", "ProducerNormalMessageExample", "SimpleConsumerExample", _JAVA_DONE, 1),
    # It begins receives without end, and its acknowledgement comes after millions of them.
    Example("java", "ProducerNormalMessageExample", "AsyncSimpleConsumerExample", r"Received [1-9]", 1, is_acked=False),
    # What mqdb does not have is refused; the SDKs look at what they have been told of the topic.
    Example("java", "ProducerPriorityMessageExample", None, "not match with topic accept message types", 1),
    Example("java", "LiteProducerExample", None, "not match with topic accept message types", 1),
    Example("java", "LitePushConsumerExample", None, "Lite subscription quota exceeded", 1),
    Example("go", "producer/normal", _GO_PUSH, _GO_GOT, 10),
    Example("go", "producer/async", _GO_PUSH, _GO_GOT, 10),
    Example("go", "producer/fifo", _GO_PUSH, _GO_GOT, 10, is_ordered=True),
    Example("go", "producer/delay", _GO_PUSH, _GO_GOT, 10),
    Example("go", "producer/transaction", _GO_PUSH, _GO_GOT, 10),
    Example("go", "producer/normal", "consumer/simple_consumer", _GO_GOT, 10),
    Example("go", "producer/delay_recall", None, "Message recalled successfully", 1),
    Example("go", "producer/priority", None, "Failed to send .* priority message", 3),
    Example("go", "producer/lite", None, "not match with topic accept message types", 1),
    Example("go", "consumer/lite_push_consumer", None, "SubscribeLite .* Method not found", 1),
)

#: These programs turn TLS off.
_WITHOUT_TLS: Final = {"producer/normal", "consumer/lite_push_consumer"}


class PublishedExamples:
    """The examples, built in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def build(self) -> None:
        """Fetch all examples and compile them. Raises ProgramMissing."""
        self._build_java()
        self._build_go()

    def _build_java(self) -> None:
        version = re.search(r"rocketmq-client-java</artifactId>\s*<version>(.+)</version>", _POM.read_text())
        assert version is not None
        artifact = f"org.apache.rocketmq:rocketmq-client-java:{version[1]}:jar:sources"
        maven = ["mvn", "--batch-mode", "--quiet", "dependency:copy", f"-Dartifact={artifact}"]
        made = cached("sdk-java-sources", [_POM], ["mvn"], [*maven, "-DoutputDirectory={}"])
        sources, classes = self._folder / "java", self._folder / "classes"
        [jar] = made.glob("*.jar")
        _run(["unzip", "-q", str(jar), f"{_JAVA_PACKAGE.replace('.', '/')}/*", "-d", str(sources)])
        files = sorted(sources.rglob("*.java"))
        for file in files:
            text = file.read_text()
            for word, name in _JAVA_WORDS.items():
                text = re.sub(word, f'System.getenv("{name}")', text)
            file.write_text(text)
        _run(["javac", "--release", "17", "-nowarn", "-cp", f"{java_jars()}/*", "-d", str(classes), *map(str, files)])

    def _build_go(self) -> None:
        need("go")
        there = json.loads(_run(["go", "list", "-m", "-json", _GO_MODULE], cwd=_GO_FILES[0].parent))
        if "Dir" not in there:
            _run(["go", "mod", "download"], cwd=_GO_FILES[0].parent)
            there = json.loads(_run(["go", "list", "-m", "-json", _GO_MODULE], cwd=_GO_FILES[0].parent))
        published, copies = Path(there["Dir"]) / "example", self._folder / "go"
        for file in published.rglob("*.go"):
            copy = copies / file.relative_to(published)
            copy.parent.mkdir(parents=True)
            text = file.read_text().replace("\nconst (\n", "\nvar (\n", 1)
            copy.write_text(_GO_WORDS.sub(r'\t\1\2= os.Getenv("EXAMPLE_\1")', text))
        for file in _GO_FILES:
            (copies / file.name).write_bytes(file.read_bytes())
        (self._folder / "programs").mkdir()
        for file in copies.rglob("main.go"):
            package = file.parent.relative_to(copies)
            _run(["go", "build", "-o", str(self._folder / "programs" / package.name), f"./{package}"], cwd=copies)

    def run(self, example: Example, front: GrpcFront, dsn: str) -> str | None:
        """Run an example on its own topic and group. Returns None on success, else the problem."""
        name = new_prefix("example")
        with Admin(dsn) as admin, ExitStack() as stack:
            admin.topics.create(name)
            admin.groups.update(name, consume_mode=ConsumeMode.POP, consume_message_orderly=example.is_ordered)
            admin.acl.grant(KEY[0], group=[name], external=True)
            environment = {
                **os.environ,
                "EXAMPLE_Topic": name,
                "EXAMPLE_ConsumerGroup": name,
                "EXAMPLE_AccessKey": KEY[0],
                "EXAMPLE_SecretKey": KEY[1],
                "EXAMPLE_NameSpace": "",
                "mq.consoleAppender.enabled": "true",
            }
            consumer: PrintingProgram | None = None
            if example.consumer is not None:
                consumer = self._start(example.language, example.consumer, front, environment, stack)
                wait_until(lambda: admin.groups.topics(name) != [], _SECONDS)
            producer = self._start(example.language, example.producer, front, environment, stack)
            seen = consumer or producer
            if not seen.wait_for(example.pattern, example.count, _SECONDS):
                came = f"{seen.count(example.pattern)} of {example.count} came"
                return f"{came}; the last output is: {producer.output[-1_500:]} {seen.output[-1_500:]}"
            if consumer is not None and example.is_acked:
                wait_until(
                    lambda: all(not lag.lag and not lag.in_flight for lag in admin.groups.topics(name)), _SECONDS
                )
        return None

    def _start(
        self, language: str, program: str, front: GrpcFront, environment: Mapping[str, str], stack: ExitStack
    ) -> PrintingProgram:
        endpoint = str(front.address if program in _WITHOUT_TLS else front.tls_address)
        home = stack.enter_context(TemporaryDirectory(prefix="mqdb-examples-"))
        if language == "java":
            words = java_command(self._folder / "classes")
            command = [*(word.replace("{home}", home) for word in words), f"{_JAVA_PACKAGE}.{program}"]
        else:
            command = [str(self._folder / "programs" / Path(program).name)]
        started = PrintingProgram(command, Path(home), {**environment, "HOME": home, "EXAMPLE_Endpoint": endpoint})
        stack.callback(started.stop)
        return started


def _run(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    if done.returncode != 0:
        raise ProgramMissing(f"{' '.join(command[:4])} ... failed:\n{(done.stdout + done.stderr)[-2_000:]}")
    return done.stdout
