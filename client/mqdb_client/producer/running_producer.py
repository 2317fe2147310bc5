"""The parts of a started producer, from `start` to `shutdown`."""

import threading
from collections.abc import Callable
from enum import StrEnum

from mqdb.common.clock import Clock
from mqdb.common.unique_id import UniqueIdGenerator
from mqdb.errors import IllegalState
from mqdb.settings import Settings
from mqdb_client.cluster import Cluster
from mqdb_client.producer.append.broker_link import BrokerLink
from mqdb_client.producer.append.group_append import refuse_reentry
from mqdb_client.producer.append.waking import Waking
from mqdb_client.producer.config import ProducerConfig
from mqdb_client.producer.joined.joined_sending import JoinedSending
from mqdb_client.producer.queues.fault_tolerance import LatencyFaultTolerance
from mqdb_client.producer.queues.publish_routes import PublishRoutes
from mqdb_client.producer.requests.reply_sending import ReplySending
from mqdb_client.producer.requests.request_reply import RequestReply
from mqdb_client.producer.sends.async_send import AsyncSend, Permits
from mqdb_client.producer.sends.send_hooks import Hooks
from mqdb_client.producer.sends.sending import Sending
from mqdb_client.producer.sends.sent_messages import SentMessages


class ProducerState(StrEnum):
    """The state, as worded in an error about the producer."""

    CREATED = "not started; call start(), or use it in a with block"
    RUNNING = "already running"
    SHUT_DOWN = "shut down"


class RunningProducer:
    """The parts of a started producer, which is closed once.

    Parts with their own threads are made when first needed.
    """

    def __init__(
        self,
        config: ProducerConfig,
        settings: Settings,
        cluster: Cluster,
        hooks: Hooks,
        unique_ids: UniqueIdGenerator,
        clock: Clock,
        sent: SentMessages,
    ) -> None:
        """Create the parts without connecting.

        Raises ParameterInvalid for a durability that is impossible behind a pooler.
        """
        self.cluster = cluster
        #: Knows whether this is a forked child.
        self.instance = cluster.instances[0]
        waking = Waking()
        self.links = {each.broker_name: BrokerLink(each, config.durability, waking) for each in cluster.instances}
        faults = LatencyFaultTolerance() if config.send_latency_fault_enable else None
        queue_nums = settings.default_topic_queue_nums if settings.auto_create_topic_enable else None
        self.routes = PublishRoutes(self.links, queue_nums, faults)
        born_host, client_id = self.instance.address, self.instance.client_id
        find = sent.find_queue_offset
        self.sending = Sending(config, self.links, self.routes, hooks, faults, born_host, client_id, find)
        self.reply_sending = ReplySending(self.links, unique_ids, clock, born_host)
        find_joined = sent.find_joined_offset
        self.joined_sending = JoinedSending(config, hooks, unique_ids, clock, born_host, client_id, find_joined)
        self._permits = Permits(config.back_pressure_for_async_send_num, config.back_pressure_for_async_send_size_bytes)
        self._clock = clock
        self._guard = threading.RLock()  # see `refuse_reentry`
        self._is_closed = False
        self._async_send: AsyncSend | None = None
        self._request_reply: RequestReply | None = None
        self._at_close: list[Callable[[], None]] = []

    def open(self) -> None:
        """Begin to connect. Raises the errors of `BrokerLink.open`."""
        for link in self.links.values():
            link.open()

    @property
    def async_send(self) -> AsyncSend:
        """The part for sends that no thread waits for. Raises IllegalState once the producer is closed."""
        if (made := self._async_send) is not None:
            return made
        refuse_reentry(self._guard)
        with self._guard:
            self._check_open()
            if self._async_send is None:
                self._async_send = AsyncSend(self.sending, self._permits)
            return self._async_send

    @property
    def request_reply(self) -> RequestReply:
        """The part for requests."""
        refuse_reentry(self._guard)
        with self._guard:
            self._check_open()
            if self._request_reply is None:
                self._request_reply = RequestReply(tuple(self.links.values()), self._clock)
            return self._request_reply

    def _check_open(self) -> None:
        if self._is_closed:
            raise IllegalState("the producer", ProducerState.SHUT_DOWN)

    def at_close(self, wait_for_sends: Callable[[], None]) -> None:
        """Register `wait_for_sends`: `close` calls it after it stops accepting sends and before it refuses appends."""
        with self._guard:
            self._check_open()
            self._at_close.append(wait_for_sends)

    def is_own_thread(self) -> bool:
        """Whether `close` would wait for this thread."""
        return self._async_send is not None and self._async_send.is_own_thread()

    def close(self) -> None:
        """Wait for the sends under way, until their deadlines at most."""
        with self._guard:
            self._is_closed = True
        if self._request_reply is not None:
            self._request_reply.close()
        if self._async_send is not None:
            self._async_send.close()
        for wait_for_sends in self._at_close:
            wait_for_sends()
        for link in self.links.values():
            link.appends.close()

    def disconnect(self) -> None:
        """Close all links, even if the producer was opened only in part."""
        for link in self.links.values():
            link.close()
