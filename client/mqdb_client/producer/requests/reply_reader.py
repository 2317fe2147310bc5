"""The reply reader: a thread that reads replies from one broker and hands them to the waiting requests.

All requesters of a cluster share a topic, and the tag of a reply is its requester's client id: the database compares
the code of the tag, and this reader compares the tag itself. While requests wait, the thread reads when an arrival is
announced; a slower poll makes up for lost announcements. RocketMQ: ReplyMessageProcessor of the client.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from sqlalchemy import Connection

from mqdb.broker.consumers.horizon import UNKNOWN_HORIZON, Horizon
from mqdb.broker.consumers.pull import PullRequest, PullResult, PullStatus
from mqdb.broker.log import replies
from mqdb.broker.log.proofs import proven
from mqdb.common.backoff import pauses
from mqdb.common.message import MessageQueue
from mqdb.common.proof import Proof, place_of, proof
from mqdb.common.received_message import ReceivedMessage
from mqdb.common.wake_limit import WakeLimit
from mqdb.errors import BrokerUnavailable, MqdbError
from mqdb.selector.tags import TagExpression, tag_code
from mqdb_client.producer.append.broker_link import BrokerLink

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Between polls without an announcement, while requests wait.
POLL_SECONDS: Final = 1.0

#: The limit for one query, and for a connection to the broker before requests fail without one.
_PATIENCE_SECONDS: Final = 3.0

_LONGEST_PAUSE_SECONDS: Final = 1.0

#: How far before its end a queue is read if requests were sent before that end was known: more replies than a broker
#: takes between its own return and that of its clients.
LOOK_BACK: Final = 10_000

#: How many replies to other requesters one pull skips: 10 ms of work.
SCAN_LIMIT: Final = 100_000

# Beyond any offset, so that the result contains the end of the queue.
_PAST_THE_END: Final = 2**62


class ReplyReader:
    """Reads replies while `is_wanted` returns True, from the start until it is stopped.

    `deliver` gets each reply; `on_news` is called when the reader becomes ready, and for each `trouble`. All three are
    called in the reader's thread.
    """

    def __init__(
        self,
        link: BrokerLink,
        client_id: str,
        *,
        is_wanted: Callable[[], bool],
        deliver: Callable[[ReceivedMessage], None],
        on_news: Callable[[], None],
    ) -> None:
        self._link = link
        self._client_id = client_id
        #: The address for replies, which requests contain; known when the reader is ready.
        self.address = client_id
        self._filter = _filter_of(client_id)
        self._is_wanted = is_wanted
        self._deliver = deliver
        self._on_news = on_news
        #: Whether it has ever known where to read.
        self.is_ready = False
        #: Why it currently cannot read; None in the first seconds without a connection.
        self.trouble: MqdbError | None = None
        #: Whether replies may have arrived before it knew where to read.
        self.is_late = False
        self._wake = threading.Condition()
        self._wake_limit = WakeLimit()
        self._is_heard = False
        self._is_idle = True
        self._is_stopping = False
        self._places: list[PullRequest] = []
        self._queue_keys: frozenset[int] = frozenset()
        self._horizon = UNKNOWN_HORIZON
        #: The last reply from each queue, by its key.
        self._newest: dict[int, Proof] = {}
        self._arrivals = link.instance.on_arrival(self._on_arrival)
        self._thread = threading.Thread(target=self._run, name=f"mqdb-replies-{link.name}", daemon=True)
        self._thread.start()

    @property
    def cluster_name(self) -> str:
        """The cluster whose reply topic the reader reads; known when the reader is ready."""
        return self._link.instance.cluster_name

    def read(self) -> None:
        """Begin to read, because a request waits. This costs next to nothing if the reader is already reading."""
        with self._wake:
            if self._is_idle:
                self.trouble = None
                self._wake.notify()

    def stop(self) -> None:
        """End the thread after the current pull. Calling it twice has no effect."""
        self._arrivals.cancel()
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._thread.join()

    def _on_arrival(self, queue_keys: frozenset[int] | None) -> None:
        if queue_keys is None or not self._queue_keys.isdisjoint(queue_keys):
            with self._wake:
                self._is_heard = True
                if not self._is_idle:
                    self._wake.notify()

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while self._await_request():
            with self._link.instance.awaiting_arrivals():
                self._read_while_wanted()

    def _await_request(self) -> bool:
        """Sleep until a request waits. Returns False when the reader is stopping."""
        with self._wake:
            self._is_idle = True
            self._wake.wait_for(lambda: self._is_stopping or self._is_wanted())
            self._is_idle = False
            return not self._is_stopping

    def _read_while_wanted(self) -> None:
        waits: Iterator[float] | None = None
        began = time.monotonic()
        while self._is_wanted() and not self._is_stopping:
            begin = self._places
            try:
                self._read()
            except MqdbError as error:
                may_pass = isinstance(error, BrokerUnavailable) and error.may_pass
                if not may_pass or time.monotonic() >= began + _PATIENCE_SECONDS:
                    self.trouble = error
                    self._on_news()
                if not self._link.instance.outage.covers(self, error) and waits is None:
                    fields = {"broker": self._link.name, "reason": str(error)}
                    sentence = "could not read replies from broker %(broker)s; will retry: %(reason)s"
                    logger.warning(sentence, fields, extra=fields)
            except Exception:
                fields = {"broker": self._link.name}
                logger.exception("could not read replies from broker %(broker)s; will retry", fields, extra=fields)
            else:
                waits = None
                self._link.instance.outage.works(self)
                if _offsets(self._places) == _offsets(begin):
                    self._wake_limit.spend()
                else:
                    self._wake_limit.regain()
                self._await_arrival()
                continue
            waits = waits or pauses(_LONGEST_PAUSE_SECONDS)
            self._pause(next(waits))
        self._link.instance.outage.leave(self)

    def _await_arrival(self) -> None:
        # Also if no request waits at the moment: the next one often follows immediately.
        with self._wake:
            self._wake.wait_for(lambda: self._is_heard or self._is_stopping, POLL_SECONDS)
            self._wake.wait_for(lambda: self._is_stopping, self._wake_limit.seconds_left())
            self._is_heard = False

    def _pause(self, seconds: float) -> None:
        with self._wake:
            self._wake.wait_for(lambda: self._is_stopping, seconds)

    # -- reading ----------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read all queues to their ends."""
        has_more = True
        while has_more and not self._is_stopping:
            if not self._places:
                self._begin()
            results, self._horizon = self._ask(self._pull)
            if len(results) < len(self._places):  # deleted, or from another history
                self._places, self.is_late = [], True
                continue  # from the last reply that is still in the log, or from further back
            has_more = self._take_over(results)

    def _pull(self, connection: Connection) -> tuple[list[PullResult], Horizon]:
        return replies.read(
            connection,
            self._places,
            self._client_id,
            filter=self._filter,
            scan_limit=SCAN_LIMIT,
            horizon=self._horizon,
        )

    def _take_over(self, results: Sequence[PullResult]) -> bool:
        """Deliver the messages of a pull; returns True if there is more to read."""
        for result in results:
            for message in result.messages:
                if self._filter.matches(message.tag):  # other tags may have the same code
                    self._deliver(message)
                    self._newest[result.request.queue_key] = proof(*place_of(message))
        # The replies are gone if retention removed them, the server lost its newest messages, or the topic was deleted.
        is_lost = any(result.status is PullStatus.OFFSET_ILLEGAL for result in results)
        self._places = [] if is_lost else [_next_place(result) for result in results]
        return not self._places or any(result.next_begin_offset < result.max_offset for result in results)

    def _begin(self) -> None:
        """Find the reply topic, and the offsets at which to begin."""
        self._queue_keys = frozenset()
        ends, known, self.address = self._ask(self._find_ends)
        self._filter = _filter_of(self.address)
        # Checked afterwards: requests sent until now may have replies before these ends.
        look_back = LOOK_BACK if self.is_late else 0
        self._places = [_first_place(end, look_back, known.get(end.request.queue_key)) for end in ends]
        self._queue_keys = frozenset(end.request.queue_key for end in ends)
        self.is_ready, self.trouble = True, None
        self._on_news()

    def _find_ends(self, connection: Connection) -> tuple[list[PullResult], dict[int, int], str]:
        """The ends of the queues, the offsets behind the last replies by queue key, and the address.

        Replies that the log no longer has are left out. A role that does not own the broker cannot check the log for
        these replies, so it reads from further back.
        """
        route = replies.find_topic(connection, self.cluster_name)
        ends = [
            PullRequest(
                MessageQueue(route.config.name, self._link.name, queue_id),
                queue_key,
                _PAST_THE_END,
                history=route.history,
            )
            for queue_id, queue_key in enumerate(route.queue_keys)
        ]
        keys = self._newest.keys() & set(route.queue_keys)
        known = proven(connection, {key: self._newest[key] for key in keys})
        address = replies.address_of(connection, self._client_id)
        found, _ = replies.read(
            connection,
            ends,
            self._client_id,
            filter=_filter_of(address),
            scan_limit=SCAN_LIMIT,
            horizon=UNKNOWN_HORIZON,
        )
        return found, {key: self._newest[key].queue_offset + 1 for key in known}, address

    def _ask(self, work: Callable[[Connection], T]) -> T:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        late = BrokerUnavailable(self._link.instance.target, f"no answer within {_PATIENCE_SECONDS:g} s")
        # Waiting for a connection here would keep others from noticing that there is none.
        return self._link.ask(work, deadline, late, is_patient=False)


def _filter_of(address: str) -> TagExpression:
    # Not parsed from an expression: an address may contain the separator of tags.
    return TagExpression(address, frozenset({address}), (tag_code(address),), matches_all=False)


def _offsets(places: Sequence[PullRequest]) -> list[int]:
    return [place.offset for place in places]


def _next_place(result: PullResult) -> PullRequest:
    return replace(result.request, offset=result.next_begin_offset, segment=result.segment)


def _first_place(end: PullResult, look_back: int, known: int | None) -> PullRequest:
    if not look_back:
        return _next_place(end)
    return replace(end.request, offset=max(end.min_offset, end.max_offset - look_back, known or 0))
