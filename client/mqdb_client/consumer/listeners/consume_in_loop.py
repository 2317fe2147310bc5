"""Concurrent consumption by an asynchronous listener: each batch is a task of an event loop.

Tokens, verdicts and the handling of failed messages are as in `consume_concurrently`.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import repeat
from typing import Any, ClassVar

from mqdb_client.consumer.listeners.consume_concurrently import ConsumeConcurrently
from mqdb_client.consumer.listeners.ctrl_c import hand_on
from mqdb_client.consumer.listeners.loop_tasks import LoopTasks, Work
from mqdb_client.consumer.listeners.message_listener import ConsumeConcurrentlyContext, MessageListener
from mqdb_client.consumer.listeners.running_calls import RunningCall
from mqdb_client.consumer.queues.process_queue import ProcessQueue


class ConsumeInLoop(ConsumeConcurrently):
    """The tasks of one consumer, up to `thread_nums` at once."""

    _is_asynchronous: ClassVar[bool] = True

    def __init__(
        self,
        group: str,
        listener: MessageListener,
        broker_names: Iterable[str],
        *,
        loop: asyncio.AbstractEventLoop,
        thread_nums: int,
        **options: Any,
    ) -> None:
        """`options` are the options of ConsumeConcurrently."""
        super().__init__(group, listener, broker_names, thread_nums=thread_nums, **options)
        self._waiting: deque[ProcessQueue] = deque()
        self.threads: LoopTasks = LoopTasks(loop, self._take, thread_nums)

    def submit(self, process_queue: ProcessQueue, count: int) -> None:
        """Called when `count` more messages can be taken from a process queue."""
        self._waiting.extend(repeat(process_queue, -(-count // self._batch_max_size)))
        self.threads.wake()

    def _take(self) -> Work | None:
        while self._waiting:
            process_queue = self._waiting.popleft()
            messages = process_queue.take(self._batch_max_size)
            if messages:  # otherwise dropped, or already taken as part of a larger batch
                call = self.calls.begin(process_queue, messages)
                return Work(self._consume_in_task(call), partial(self._return_unbegun, call))
        return None

    def _return_unbegun(self, call: RunningCall) -> None:
        """Return the messages of a task that was cancelled before its first step, so that they are taken again."""
        if call.task is None and self.calls.end(call):
            call.process_queue.fail(call.messages)
            self._retry(call.process_queue, call.messages)

    async def _consume_in_task(self, call: RunningCall) -> None:
        call.task = asyncio.current_task()
        try:
            await self._call(call)
        except (asyncio.CancelledError, GeneratorExit):  # raised by this task, not by the listener
            raise
        except BaseException as error:  # noqa: BLE001 - nobody awaits the task
            self._abandon(call, error)

    async def _call(self, call: RunningCall) -> None:
        process_queue, messages = call.process_queue, call.messages
        context = ConsumeConcurrentlyContext(process_queue.queue)
        observed = self._hooks.begin(process_queue.queue, messages)
        try:
            called = self._listener(messages[:], context) if self._takes_context else self._listener(messages[:])
            verdict = self._returned(call, context, observed, await called)
        except asyncio.CancelledError as error:
            # Messages of cancelled tasks are sent back, too: the queue continues without them.
            self._conclude(call, self._raised(call, context, observed, error))
            raise
        except BaseException as error:  # noqa: BLE001 - also sys.exit(), which would end the loop
            if type(error) is GeneratorExit and self.threads.is_closed():
                # The coroutine was discarded together with its loop. Its messages have not failed.
                self.calls.end(call)
                process_queue.fail(messages)
                return
            self._conclude(call, self._raised(call, context, observed, error))
            hand_on(error)
        else:
            self._conclude(call, verdict)
