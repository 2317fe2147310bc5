"""What a started producer works with, from `start` to `shutdown`."""

import threading
from enum import StrEnum

from mqdb.clock import Clock
from mqdb.errors import IllegalState
from mqdb_client.cluster import Cluster
from mqdb_client.producer.async_send import AsyncSend, Permits
from mqdb_client.producer.broker_link import BrokerLink
from mqdb_client.producer.config import ProducerConfig
from mqdb_client.producer.joined_sending import JoinedSending
from mqdb_client.producer.publish_queues import PublishRoutes
from mqdb_client.producer.reentry import refuse_reentry
from mqdb_client.producer.request_reply import RequestReply
from mqdb_client.producer.sending import Sending


class ProducerState(StrEnum):
    """In the words of an error about it."""

    CREATED = "not started; call start(), or use it in a with block"
    RUNNING = "already running"
    SHUT_DOWN = "shut down"


class RunningProducer:
    """Closed once. What has threads of its own is made when it is first needed."""

    def __init__(
        self,
        config: ProducerConfig,
        cluster: Cluster,
        links: dict[str, BrokerLink],
        routes: PublishRoutes,
        sending: Sending,
        joined_sending: JoinedSending,
        clock: Clock,
    ) -> None:
        self.cluster = cluster
        #: Raises IllegalState in a forked child. Asked for each message, so it is not passed through the cluster.
        self.check_process = cluster.instances[0].check_process
        self.links = links
        self.routes = routes
        self.sending = sending
        self.joined_sending = joined_sending
        self._permits = Permits(config.back_pressure_for_async_send_num, config.back_pressure_for_async_send_size_bytes)
        self._clock = clock
        self._guard = threading.RLock()  # see `refuse_reentry`
        self._is_closed = False
        self._async_send: AsyncSend | None = None
        self._request_reply: RequestReply | None = None

    @property
    def async_send(self) -> AsyncSend:
        """For sends that nobody waits for; refuses them once it is closed."""
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
        """For requests."""
        refuse_reentry(self._guard)
        with self._guard:
            self._check_open()
            if self._request_reply is None:
                self._request_reply = RequestReply(tuple(self.links.values()), self._clock)
            return self._request_reply

    def _check_open(self) -> None:
        if self._is_closed:
            raise IllegalState("the producer", ProducerState.SHUT_DOWN)

    def is_own_thread(self) -> bool:
        """Whether `close` would wait for this thread."""
        return self._async_send is not None and self._async_send.is_own_thread()

    def close(self) -> None:
        """Let the sends under way end, and disconnect."""
        with self._guard:
            self._is_closed = True
        if self._request_reply is not None:
            self._request_reply.close()
        if self._async_send is not None:
            self._async_send.close()
        for link in self.links.values():
            link.close()
