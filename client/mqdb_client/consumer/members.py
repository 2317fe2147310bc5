"""The members that make up a consumer: one for each broker, and the listener's threads, which they share.

    broker-a ── member ──┐
                         ├──▶ consume_thread_nums threads ──▶ listener
    broker-b ── member ──┘

Membership, queue ownership and offsets are rows in each broker's own database, so each member rebalances for itself
with the group's other members there: a broker that is down, or slow, changes nothing on the others.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mqdb
from mqdb.broker.send_back import SendBackRequest, send_back
from mqdb.errors import ShutdownTimedOut
from mqdb.group import MessageModel
from mqdb.message import MessageQueue, ReceivedMessage
from mqdb.selector.subscription import MessageFilter, stored_form
from mqdb.store.clients import ClientKind, Registration
from mqdb.store.retry_filter import retry_filter
from mqdb.topic import retry_topic
from mqdb_client.cluster import Cluster
from mqdb_client.consumer.consume_hooks import ConsumeHooks
from mqdb_client.consumer.consumption import Consumption
from mqdb_client.consumer.direct_consumption import ConsumeMessageDirectlyResult
from mqdb_client.consumer.local_offsets import LocalOffsets, offsets_directory
from mqdb_client.consumer.member import Member
from mqdb_client.consumer.process_queue import ProcessQueue
from mqdb_client.consumer.push_consumer_config import PushConsumerConfig
from mqdb_client.consumer.request_answers import RequestAnswers
from mqdb_client.consumer.share import TopicPresence
from mqdb_client.consumer.shutdown_report import shutdown_report
from mqdb_client.consumer.thread_stacks import name_of, stack_of


class Members:
    """Started once, then left once. The cluster is given back when it has left, or when the start has failed."""

    def __init__(
        self,
        cluster: Cluster,
        config: PushConsumerConfig,
        filters: Mapping[str, MessageFilter],
        consumption: Consumption,
        hooks: ConsumeHooks,
        *,
        home: Path,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._local_offsets: LocalOffsets | None = None
        self._instances = {instance.broker_name: instance for instance in cluster.instances}
        self._registration = Registration(
            client_id=cluster.instances[0].client_id,
            kind=ClientKind.CONSUMER,
            group=config.group,
            version=mqdb.__version__,
            message_model=config.message_model,
            subscriptions=stored_form(filters),
            subscription_version=config.subscription_version,
        )
        if config.message_model is MessageModel.BROADCASTING:
            address = cluster.instances[0].address
            directory = offsets_directory(home, address, config.instance_name, config.group)
            self._local_offsets = LocalOffsets(Path(config.local_offset_directory or directory))
        else:
            filters = self._with_retries(filters)
        self._consumption = consumption
        self.consume = consumption.consume_service(config, self._instances, hooks, self._send_back, self._on_progress)
        self._answers = [RequestAnswers(instance, config.group, self) for instance in cluster.instances]
        presence = TopicPresence(config.group, len(cluster.instances))
        self._members = {
            instance.broker_name: Member(
                instance,
                config,
                filters,
                presence,
                store=consumption.offset_store(config, instance, self._local_offsets),
                limits=consumption.flow_limits(config),
                deliver=self.consume.submit,
            )
            for instance in cluster.instances
        }

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that are read, in order."""
        return tuple(sorted(queue for member in self._members.values() for queue in member.rebalance.assignment))

    def is_listening_thread(self) -> bool:
        """Whether a listener is asking."""
        return self.consume.threads.is_own_thread()

    def start(self) -> None:
        """Join the group and consume. Raises what keeps it from that, and has left nothing behind then."""
        with ExitStack() as undo:
            undo.callback(self._cluster.release)
            undo.callback(self.consume.stop, None)
            if self._local_offsets is not None:
                self._local_offsets.open()
                undo.callback(self._local_offsets.close)
            self.consume.start()
            self._cluster.register(self._registration)
            for answers in self._answers:
                answers.start()
                undo.callback(answers.stop)
            for member in self._members.values():
                member.start(may_be_down=not self._cluster.is_single)
                undo.callback(member.leave, None)
                undo.callback(member.begin_to_leave)
            # Not earlier: where the start fails no listener has run.
            self.consume.threads.begin()
            undo.pop_all()

    def subscribe_to(self, filters: Mapping[str, MessageFilter], version: int) -> None:
        """Read these topics from now on, and no others. Raises what `retry_filter` and `Cluster.change` raise."""
        wanted = self._with_retries(filters) if self._local_offsets is None else filters
        before = self._registration
        self._registration = before._replace(
            subscriptions=stored_form(filters), subscription_version=max(version, before.subscription_version)
        )
        try:
            self._cluster.change(self._registration)
        except BaseException:
            self._registration = before
            raise
        for member in self._members.values():
            member.read(wanted)

    def _with_retries(self, filters: Mapping[str, MessageFilter]) -> dict[str, MessageFilter]:
        return {**filters, retry_topic(self._config.group): retry_filter(filters)}

    def suspend(self) -> None:
        """Pull nothing on any broker, and leave the queues as they are."""
        for member in self._members.values():
            member.suspend()

    def resume(self) -> None:
        """Go on."""
        for member in self._members.values():
            member.resume()

    def leave(self, seconds: float) -> None:
        """Leave the group when all listeners have returned, or after `seconds`; then raises ShutdownTimedOut."""
        group = self._registration.group
        with shutdown_report(group, seconds, lambda: len(self.consume.calls.current())):
            deadline = time.monotonic() + seconds
            for answers in self._answers:
                answers.stop()
            for member in self._members.values():
                member.begin_to_leave()
            for member in self._members.values():
                member.leave(max(deadline - time.monotonic(), 0.0))
            running = self.consume.stop(max(deadline - time.monotonic(), 0.0))
            if self._local_offsets is not None:
                self._local_offsets.close()
            self._cluster.release()
        # Of the threads that are left, others have nothing to do any more, and are about to end.
        if running and (listeners := len(self.consume.calls.current())):
            raise ShutdownTimedOut(group, listeners, seconds)

    # -- what people ask ------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """The queues that are held, and the calls of the listener that have not returned."""
        queues = sorted(
            (held for member in self._members.values() for held in member.rebalance.held), key=lambda held: held.queue
        )
        now = time.monotonic()
        return {
            "state": "running",
            "group": self._config.group,
            "message_model": self._config.message_model.value,
            "consume_thread_nums": self.consume.threads.thread_nums,
            "subscriptions": [each._asdict() for each in self._registration.subscriptions],
            "queues": [held.describe() for held in queues],
            "listeners": [
                {
                    "thread": name_of(call.thread_id),
                    "seconds": round(now - call.started_at, 3),
                    "queue": str(call.process_queue.queue),
                    "queue_offset": call.messages[0].queue_offset,
                    "messages": len(call.messages),
                    "is_given_up": call.is_given_up,
                    "stack": stack_of(call.thread_id),
                }
                for call in self.consume.calls.current()
            ],
        }

    def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        """Have the listener consume a message, with no effect on offsets and retries."""
        return self._consumption.consume_directly(message, self._instances[message.queue.broker_name])

    def _send_back(self, broker_name: str, requests: Sequence[SendBackRequest]) -> None:
        with self._instances[broker_name].connect() as connection:
            send_back(connection, self._config.group, requests, self._config.max_reconsume_times)

    def _on_progress(self, process_queue: ProcessQueue) -> None:
        self._members[process_queue.queue.broker_name].on_progress(process_queue)
