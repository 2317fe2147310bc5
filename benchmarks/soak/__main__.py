"""The soak itself: starts all processes, and checks them each minute."""

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from benchmarks.bench.figures import durations
from mqdb.embedded import attach
from mqdb_client import Admin, ConsumeConcurrentlyStatus, ConsumeFromWhere, Message, PushConsumer, ReceivedMessage
from mqdb_client.aio import AsyncProducer

_GROUPS: Final = 100
_RATE: Final = 1_000
_BODY: Final = b"." * 180
_LAST_MINUTES: Final = 4


def main() -> None:
    """Read the command line, and run the part that it names."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--part", choices=["all", "send", "consume", "browse"], default="all", help=argparse.SUPPRESS)
    parser.add_argument("--at", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    match given.part:
        case "all":
            _soak(given.minutes)
        case "send":
            asyncio.run(_send(given.at))
        case "consume":
            _consume(given.at)
        case "browse":
            _browse(given.at)


# -- the parts, each a process ----------------------------------------------------------------


async def _send(dsn: str) -> None:
    """Sends _RATE messages a second to all topics in turn.

    Each line on standard input is answered with the number of sent messages.
    """
    sent, number = 0, 0
    tasks: set[asyncio.Task[object]] = set()

    def answer() -> None:
        if sys.stdin.readline():
            print(sent, flush=True)  # noqa: T201
        else:
            asyncio.get_running_loop().remove_reader(sys.stdin)
            ended.set()

    async with AsyncProducer("soak", dsn) as producer:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin, answer)

        async def send(message: Message) -> None:
            nonlocal sent
            await producer.send(message)
            sent += 1

        began = time.monotonic()
        while not ended.is_set():
            while number < (time.monotonic() - began) * _RATE:
                body = time.time_ns().to_bytes(8) + _BODY
                task = asyncio.create_task(send(Message(f"topic-{number % _GROUPS}", body, tag="soak")))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                number += 1
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)


def _consume(dsn: str) -> None:
    """Consumes each topic in a separate group.

    Each line on standard input is answered with the latencies in ms since the last line.
    """
    latencies: list[float] = []

    def listen(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        now = time.time_ns()
        latencies.extend((now - int.from_bytes(message.body[:8])) / 1e9 for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with ExitStack() as stack:
        for number in range(_GROUPS):
            consumer = PushConsumer(
                f"group-{number}",
                dsn,
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
                consume_thread_nums=1,
            )
            consumer.subscribe(f"topic-{number}")
            consumer.register_listener(listen)
            consumer.start()
            stack.callback(consumer.shutdown)
        print("ready", flush=True)  # noqa: T201
        while sys.stdin.readline():
            last, latencies[:] = latencies[:], []
            print(json.dumps({"received": len(last)} | (durations(last) if last else {})), flush=True)  # noqa: T201


def _browse(url: str) -> None:
    """Keeps the dashboard's overview open until standard input ends."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(url)
        print("ready", flush=True)  # noqa: T201
        while not _is_readable(sys.stdin.fileno()):
            page.wait_for_timeout(1_000)
        browser.close()


def _is_readable(descriptor: int) -> bool:
    import select

    return bool(select.select([descriptor], [], [], 0)[0])


# -- all of it --------------------------------------------------------------------------------


def _soak(minutes: int) -> None:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mqdb-soak-")))
        home.chmod(0o755)
        environment = dict(os.environ, MQDB_HTTP="127.0.0.1:0")
        serve = stack.enter_context(_process("-m", "mqdb", "serve", "--home", str(home), environment=environment))
        said = ""
        while "token=" not in said:
            said += serve.stdout.readline() if serve.stdout else ""
        running = attach(home)
        assert running is not None
        dsn = running.dsn
        [login] = re.findall(r"http://\S+token=\S+", said)
        [metrics] = re.findall(r"http://(\S+)/metrics", said)
        with Admin(dsn) as admin:
            for number in range(_GROUPS):
                admin.topics.create(f"topic-{number}")
        consume = stack.enter_context(_part("consume", dsn))
        prometheus, api = stack.enter_context(_prometheus(home, metrics))
        browse = stack.enter_context(_part("browse", login))
        send = stack.enter_context(_part("send", dsn, is_ready=True))
        watched = {"serve": serve, "send": send, "consume": consume, "prometheus": prometheus, "browser": browse}
        postmaster = int(next(home.rglob("postmaster.pid")).read_text().split()[0])
        for minute in range(minutes + _LAST_MINUTES):
            if minute == minutes:
                _end(watched.pop("prometheus"))
            if minute == minutes + _LAST_MINUTES // 2:
                _end(watched.pop("browser"))
            before = {name: _cpu(process.pid) for name, process in watched.items()} | {"postgres": _cpu(postmaster)}
            time.sleep(60)
            line: dict[str, object] = {"minute": minute + 1}
            for name, pid in {
                **{name: process.pid for name, process in watched.items()},
                "postgres": postmaster,
            }.items():
                line[name] = _state(pid) | {"cpu_percent": round((_cpu(pid) - before[name]) / 0.6, 2)}
            if "prometheus" in watched:
                seen = _seen(api)
                line["metrics_behind_messages"] = int(_ask(send)) - seen
            line["latency"] = json.loads(_ask(consume))
            print(json.dumps(line), flush=True)  # noqa: T201


@contextmanager
def _process(*arguments: str, environment: dict[str, str] | None = None) -> "Iterator[subprocess.Popen[str]]":
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdin=pipe, stdout=pipe, text=True, bufsize=1
    ) as process:
        try:
            yield process
        finally:
            _end(process)


@contextmanager
def _part(name: str, at: str, is_ready: bool = False) -> "Iterator[subprocess.Popen[str]]":
    with _process("-m", "benchmarks.soak", "--part", name, "--at", at) as process:
        if not is_ready and process.stdout is not None:
            assert process.stdout.readline() == "ready\n", name
        yield process


@contextmanager
def _prometheus(home: Path, target: str) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    config = home / "prometheus.yml"
    config.write_text(
        f"""global: {{scrape_interval: 15s}}
scrape_configs: [{{job_name: mqdb, static_configs: [{{targets: ["{target}"]}}]}}]
"""
    )
    api = "127.0.0.1:19090"
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={home}/tsdb",
        f"--web.listen-address={api}",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process, f"http://{api}"
        finally:
            _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        if process.stdin is not None:
            process.stdin.close()
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _ask(process: "subprocess.Popen[str]") -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


def _seen(api: str) -> int:
    """The number of messages according to Prometheus."""
    query = urllib.parse.urlencode({"query": 'sum(mqdb_messages_in_total{kind="normal"})'})
    with urllib.request.urlopen(f"{api}/api/v1/query?{query}") as answer:
        [found] = json.load(answer)["data"]["result"]
    return int(float(found["value"][1]))


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _cpu(pid: int) -> float:
    """CPU seconds of a process and its descendants, except PostgreSQL, which is counted separately."""
    total, is_postgres = 0.0, psutil.Process(pid).name() == "postgres"
    for process in _family(pid):
        with suppress(psutil.NoSuchProcess):
            if is_postgres or process.name() != "postgres":
                times = process.cpu_times()
                total += times.user + times.system
    return total


def _state(pid: int) -> dict[str, float]:
    process = psutil.Process(pid)
    memory = process.memory_info().rss
    return {"rss_mib": round(memory / 2**20, 1), "threads": process.num_threads(), "descriptors": process.num_fds()}


if __name__ == "__main__":
    main()
