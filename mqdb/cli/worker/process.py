"""A worker process: `python -m mqdb.cli.worker.process FD`.

It runs an application until it receives a signal to stop.
"""

import asyncio
import gc
import importlib
import logging
import os
import signal
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from mqdb.cli.app import sentence
from mqdb.cli.logs import LogFormat, configure
from mqdb.cli.times import shown_time
from mqdb.cli.worker.order import ALIVE, ALIVE_SECONDS, ANNOUNCED, READY, UNUSABLE, Order
from mqdb.common.user_error import describe
from mqdb.errors import (
    Denied,
    ExtraMissing,
    InvalidInput,
    MqdbError,
    NotFound,
    ParameterInvalid,
    SchemaMismatch,
    Transient,
)
from mqdb.settings import load_settings
from mqdb_client import App, ConsumeMessageContext
from mqdb_client.app.app_consumers import AppConsumers
from mqdb_client.app.app_crons import AppCrons
from mqdb_client.app.listener import Listener
from mqdb_client.consumer.message_selector import MessageSelector

#: Not `__name__`, which is `__main__` here.
logger = logging.getLogger("mqdb.cli.worker.process")

#: Errors that a restart does not fix.
_MENDABLE: Final = (InvalidInput, NotFound, Denied, ExtraMissing, SchemaMismatch)

#: Pauses between attempts to start while the broker cannot be reached; each pause is twice as long as the one before.
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0


class _Failures:
    """Counts failed calls of listeners."""

    hook_name = "failures"

    def __init__(self) -> None:
        self.count = 0

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """Nothing."""

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """Count the call if it failed."""
        self.count += not context.is_success


def main() -> int:
    """Run the application, and return the exit code."""
    line = socket.socket(fileno=int(sys.argv[1]))
    # Ctrl-C in a terminal reaches all processes; the supervisor passes it on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    order = Order.of(line.makefile("rb").readline())
    configure(order.log_level, LogFormat(order.log_format))
    try:
        app = _load(order.target)
    except ParameterInvalid as error:
        print(f"mqdb: {error}", file=sys.stderr)
        return UNUSABLE
    except BaseException as error:  # noqa: BLE001 - of the user's module: all of it
        print(describe(error).traceback, end="", file=sys.stderr)
        return UNUSABLE
    # Objects loaded so far are permanent: full garbage collections need not examine them each time.
    gc.collect()
    gc.freeze()
    try:
        home, config = (Path(each) if each else None for each in (order.home, order.config))
        app.use_settings(load_settings(dsn=order.dsn, home=home, config=config))
        return asyncio.run(_Process(app, order, line).run())
    except MqdbError as error:
        print(f"mqdb: {sentence(error)}", file=sys.stderr)
        return UNUSABLE if isinstance(error, _MENDABLE) else 1


class _Process:
    def __init__(self, app: App, order: Order, line: socket.socket) -> None:
        self._app = app
        self._order = order
        self._line = line
        self._failures = _Failures()
        self._is_stopping = asyncio.Event()

    async def run(self) -> int:
        """Consume until a signal arrives, and return the exit code.

        Raises errors of the application, but not Transient.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._is_stopping.set)
        loop.add_reader(self._line, self._on_closed)
        if self._order.is_measured:
            from mqdb_client.metrics import MetricsHook

            hook = MetricsHook()
            self._app.register_consume_message_hook(hook)
            self._app.register_send_message_hook(hook)
        self._app.register_consume_message_hook(self._failures)
        if self._order.announces:
            self._print_listeners()
        consumers = await self._start()
        if consumers is None:
            return 0
        self._tell(READY)
        try:
            if self._order.announces:
                await asyncio.to_thread(self._settle_crons)
                self._tell(ANNOUNCED)
            await self._work()
        finally:
            has_ended_well = await self._stop(consumers)
        return 0 if has_ended_well and not (self._order.is_once and self._failures.count) else 1

    async def _stop(self, consumers: AppConsumers) -> bool:
        """Stop the consumers, and return whether all listeners have returned."""
        try:
            await consumers.stop()
        except MqdbError as error:
            fields = {"application": self._order.target, "reason": str(error)}
            logger.error("worker of %(application)s did not shut down in order: %(reason)s", fields, extra=fields)
            return False
        finally:
            await self._app.aclose()
        return True

    async def _start(self) -> AppConsumers | None:
        """Start consuming; returns None if a signal arrives before the broker can be reached."""
        pause = _FIRST_PAUSE
        while not self._is_stopping.is_set():
            consumers = AppConsumers(self._app, self._order.groups, commits_soon=self._order.is_once)
            try:
                await consumers.start()
            except Transient as error:
                if self._order.is_once:
                    raise
                fields = {"application": self._order.target, "reason": str(error)}
                sentence = "could not start the worker of %(application)s; will retry: %(reason)s"
                logger.warning(sentence, fields, extra=fields)
                try:
                    await asyncio.wait_for(self._is_stopping.wait(), pause)
                except TimeoutError:
                    pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                return consumers
        return None

    async def _work(self) -> None:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(self._is_stopping.wait())]
        if self._order.is_once:
            tasks.append(asyncio.create_task(self._app.drain(*self._order.groups)))
        if self._order.is_measured:
            tasks.append(asyncio.create_task(self._tell_that_the_loop_turns()))
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        for task in done:
            task.result()

    async def _tell_that_the_loop_turns(self) -> None:
        while True:
            self._tell(ALIVE)
            await asyncio.sleep(ALIVE_SECONDS)

    def _tell(self, what: str) -> None:
        try:
            self._line.sendall(what.encode() + b"\n", socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass  # the supervisor is suspended, and must not block the loop
        except OSError:
            self._is_stopping.set()

    def _on_closed(self) -> None:
        asyncio.get_running_loop().remove_reader(self._line)
        self._is_stopping.set()

    # -- what people see --------------------------------------------------------------------------

    def _print_listeners(self) -> None:
        groups = self._app.groups(*self._order.groups)
        if not groups:
            print("  no listeners: the application's module has to import the modules that define them", flush=True)
        width = max((len(group.name) for group in groups), default=0)
        for group in groups:
            for listener in group.listeners:
                print(f"  {group.name:{width}}  {described(listener)}", flush=True)

    def _settle_crons(self) -> None:
        """Print a line for each cron and each cron that is no longer in the code; remove the latter if requested."""
        crons = self._app.crons(*self._order.groups)
        if not crons and self._order.groups:
            return
        with AppCrons(self._app.name, self._app.settings) as stored:
            times = stored.next_times(crons)
            for cron in crons:
                if cron.name in times:
                    at = "paused" if (due := times[cron.name]) is None else f"next {shown_time(due)}"
                    print(f"  cron {cron.name}: {cron.text} {cron.timezone}, {at}", flush=True)
            strays = [] if self._order.groups else stored.strays(crons)
            if self._order.prunes:
                stored.remove(strays)
            for name in strays:
                told = "is removed" if self._order.prunes else "keeps firing; mqdb worker --prune removes it"
                print(f"  cron {name} is no longer in the code, and {told}", flush=True)


def described(listener: Listener) -> str:
    """A listener in one line."""
    wanted = listener.expression
    filtered = f"SQL {listener.filter.canonical_text}" if isinstance(wanted, MessageSelector) else wanted
    notes = ["orderly"] * listener.orderly + ["exactly once"] * listener.exactly_once
    if listener.retries is not None:
        notes.append(f"{listener.retries} retries")
    return f"{listener.topic} ({filtered}) → {listener.name}" + "".join(f", {note}" for note in notes)


def _load(target: str) -> App:
    """Import the application. Raises ParameterInvalid, and any error raised by its module."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does, unless PYTHONSAFEPATH is set
    module_name, _, name = target.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ParameterInvalid("TARGET", target, "must be written MODULE:NAME, such as shop.tasks:app")
    try:
        spec = find_spec(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        spec = None
    if spec is None:
        raise ParameterInvalid(
            "TARGET", target, f"there is no module {module_name} in the current directory or on Python's path"
        )
    module = importlib.import_module(module_name)
    app = getattr(module, name or "app", None)
    if not isinstance(app, App):
        have = ", ".join(key for key, value in vars(module).items() if isinstance(value, App)) or "none"
        raise ParameterInvalid("TARGET", target, f"{module_name} has no App with this name; it has {have}")
    return app


if __name__ == "__main__":
    sys.exit(main())
