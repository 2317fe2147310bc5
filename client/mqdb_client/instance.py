"""The client instance: the part that all producers and consumers of a process share for one broker.

An instance has one client id. The instance holds the connections, receives notifications of arrivals and of changes in
groups, sends heartbeats and caches the routes. RocketMQ: MQClientInstance, MQClientManager.

    acquire ── open ──▶ a LISTEN connection with the presence lock ──▶ register, heartbeat every 30 s
                        an engine for everything else (the pooler, if there is one)

A forked child that uses an inherited instance gets an error. The child has to start its own clients.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import ClassVar, Final
from weakref import WeakSet

from sqlalchemy import Connection

from mqdb.broker.clients import membership
from mqdb.broker.clients.client_requests import MAX_REQUESTS
from mqdb.broker.dispatch import is_attended
from mqdb.common.dsn import BrokerDsn
from mqdb.common.topic import without_namespace
from mqdb.common.unique_id import local_address
from mqdb.common.wake_limit import WakeLimit
from mqdb.errors import BrokerUnavailable, ClientIdInUse, IllegalState
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.log.history import History
from mqdb_client.broker_connections import BrokerConnections
from mqdb_client.broker_counts import BrokerCounts
from mqdb_client.callbacks import Callback, CallbackHandle, Callbacks
from mqdb_client.client_config import DEFAULT_INSTANCE_NAME
from mqdb_client.dispatch_watch import DispatchWatch
from mqdb_client.duty import Duty
from mqdb_client.looks import look_often
from mqdb_client.notifications import Heard, NotificationThread
from mqdb_client.registrations import Registrations
from mqdb_client.route import Routes

logger = logging.getLogger(__name__)

#: The time between heartbeats, and between refreshes of the routes. Source: ClientConfig.
HEARTBEAT_INTERVAL: Final = timedelta(seconds=30)

_PRESENCE_RETRY_SECONDS: Final = 1.0


class ClientInstance:
    """A process as one broker sees it. Instances are made by `acquire`. Thread-safe.

    `client_id` has RocketMQ's format, `address@pid#nanoseconds`.
    """

    _instances: ClassVar[dict[tuple[BrokerDsn, str | None, str], "ClientInstance"]] = {}
    _registry: ClassVar[threading.Lock] = threading.Lock()
    _alive: ClassVar["WeakSet[ClientInstance]"] = WeakSet()

    @classmethod
    def acquire(
        cls,
        broker: BrokerDsn,
        pool_dsn: str | None = None,
        instance_name: str = DEFAULT_INSTANCE_NAME,
        *,
        may_be_down: bool = False,
    ) -> "ClientInstance":
        """The instance with this name for a broker in this process. Release it with `release`.

        With `may_be_down` the broker need not be reachable now. Raises BrokerUnavailable and its subclasses,
        SchemaMissing, SchemaTooOld, SchemaTooNew.
        """
        key = (broker, pool_dsn, instance_name)
        with cls._registry:
            instance = cls._instances.get(key)
            if instance is None:
                instance = cls._instances[key] = cls(broker, pool_dsn, instance_name)
            instance._users += 1
        try:
            instance.open(may_be_down=may_be_down)
        except BaseException:
            instance.release()
            raise
        return instance

    def release(self) -> None:
        """Release the instance; the last user closes it."""
        key = (self._broker, self.pool_dsn, self._instance_name)
        with self._registry:
            self._users -= 1
            is_last = self._users == 0
            if is_last and self._instances.get(key) is self:
                del self._instances[key]
        if is_last:
            self.close()

    def __init__(
        self,
        broker: BrokerDsn,
        pool_dsn: str | None = None,
        instance_name: str = DEFAULT_INSTANCE_NAME,
        *,
        heartbeat_interval: timedelta = HEARTBEAT_INTERVAL,
    ) -> None:
        """A separate instance, without `acquire`, to be opened and closed by its user."""
        self._instance_name = instance_name
        self.address = local_address() or "127.0.0.1"
        own_name = f"{os.getpid()}#{time.monotonic_ns()}" if instance_name == DEFAULT_INSTANCE_NAME else instance_name
        self.client_id = f"{self.address}@{own_name}"
        self.broker_name = broker.name
        self._broker = broker
        self.connections = BrokerConnections(
            broker, pool_dsn, self.client_id, on_replaced=self._replaced, on_answer=self._answered
        )
        self.pool_dsn = pool_dsn
        self.target = self.connections.target
        self.outage = self.connections.outage
        self.watch = self.connections.watch
        self.counts = BrokerCounts(broker.name, self.outage)
        self._heartbeat_seconds = heartbeat_interval.total_seconds()
        self._users = 0
        self._opening = threading.Lock()
        self._is_open = False
        #: When the database last answered whether a broker process runs, by the monotonic clock.
        self.answered_at = time.monotonic()
        self.is_forked = False
        self._registrations = Registrations(self.client_id, broker.name, self.connect, lambda: self.is_met)
        self._arrivals: Callbacks[frozenset[int] | None] = Callbacks("arrivals")
        self._group_changes: Callbacks[str | None] = Callbacks("group changes")
        self._requests: Callbacks[frozenset[str] | None] = Callbacks("requests")
        #: The ids of clients that connect through this one, besides its own.
        self.guests: set[str] = set()
        self._waiting_for_arrivals: set[object] = set()
        #: Changes and requests that were received but not passed on yet. Only the notification thread uses them.
        self._changed_groups: set[str] = set()
        self._asked: set[str] = set()
        self._wake_limit = WakeLimit()
        #: One slot for each request that any consumer is answering.
        self.request_slots = threading.BoundedSemaphore(MAX_REQUESTS)
        self._end_looks: Callable[[], None] = lambda: None
        self.routes = Routes(self.connect)
        self._dispatch_watch = DispatchWatch(self._ask_attended, self.connect, broker.name)
        self._telling = Duty(f"pass on news of broker {broker.name}", self._tell, self.outage, due=False)
        self._presence = Duty(f"re-register with broker {broker.name}", self._announce_again, self.outage, due=False)
        self._heartbeat = Duty(f"send heartbeats to {broker.name}", self._beat_and_refresh, self.outage, due=False)
        self._dispatch = Duty(f"dispatch on broker {broker.name}", self._tend_dispatch, self.outage)
        self._notifications = NotificationThread(
            self.connections.listener,
            greet=self._greet,
            arrivals=self._arrivals,
            heard=self._heard,
            recovered=self._recovered,
            duties=(self._telling, self._presence, self._heartbeat, self._dispatch),
            outage=self.outage,
        )
        self._alive.add(self)

    # -- life ---------------------------------------------------------------------------------

    def open(self, *, may_be_down: bool = False) -> None:
        """Connect and check that this is the expected broker. Calling it twice has no effect.

        With `may_be_down` an unreachable broker is checked once it can be reached.
        """
        self.check_process()
        with self._opening:
            if self._is_open:
                return
            is_up = self._notifications.start(may_be_down=may_be_down)
            self.connections.open()
            try:
                if is_up:  # another attempt would take 5 s more if a host does not answer
                    self.connect().close()
            except BaseException as error:
                if not (may_be_down and isinstance(error, BrokerUnavailable) and error.may_pass):
                    self._disconnect()
                    raise
            self._heartbeat.in_seconds(self._heartbeat_seconds)
            self.counts.open()
            self._end_looks = look_often(self._look)
            self._is_open = True

    def close(self) -> None:
        """Leave all groups and close the connections. Calling it twice has no effect."""
        if self.is_forked:  # a thread that held the lock at the time of the fork never releases it
            return
        with self._opening:
            if not self._is_open:
                return
            self._is_open = False
            self._end_looks()
            self._registrations.leave_all()
            self._disconnect()
            self.counts.close()

    def _look(self) -> None:
        self.watch.look()
        self.counts.look()

    def _disconnect(self) -> None:
        self._notifications.stop()
        self.connections.close()

    @property
    def is_met(self) -> bool:
        """Whether the broker has been reached and is the expected broker."""
        return self.connections.is_met

    @property
    def history(self) -> History | None:
        """The log history of the last connection; None before the first connection."""
        return self.connections.history

    @property
    def cluster_name(self) -> str:
        """The name of the broker's cluster; "" before the broker was reached."""
        return self.connections.cluster_name

    def connect(self) -> Connection:
        """A connection from the pool, in AUTOCOMMIT mode, for a `with` statement.

        Raises BrokerUnavailable and its subclasses.
        """
        self.check_process()
        return self.connections.connect()

    def connect_to_hold(self) -> Connection:
        """A connection to keep between statements.

        The user of the connection either marks each wait for an answer in the connection's `Line`, or limits each wait
        itself.
        """
        self.check_process()
        return self.connections.connect_to_hold()

    def check_process(self) -> None:
        """Raise IllegalState in a forked child of the process that made the instance."""
        if self.is_forked:
            raise IllegalState(f"client {self.client_id}", "of the parent process; start another one after the fork")

    @classmethod
    def _after_fork_in_child(cls) -> None:
        cls._registry = threading.Lock()
        cls._instances.clear()
        for instance in cls._alive:
            instance.is_forked = True
        cls._alive.clear()

    # -- groups -------------------------------------------------------------------------------

    def register(self, registration: Registration, *, may_be_down: bool = False) -> Callable[[], None]:
        """Join a group, and stay in it across lost connections until `unregister`; returns a function that undoes this.

        With `may_be_down` the client registers with an unreachable broker once it can be reached.

        Raises IllegalState if this process already has a client of this kind in the group, and the errors of
        `membership.register`.
        """
        undo = self._registrations.enter(registration, may_be_down=may_be_down)
        self._dispatch.in_seconds(0)
        self._notifications.wake()
        return undo

    def change(self, registration: Registration, *, may_be_down: bool = False) -> Callable[[], None]:
        """Replace the subscriptions in a joined group; returns a function that undoes this.

        Raises the errors of `membership.register`.
        """
        return self._registrations.change(registration, may_be_down=may_be_down)

    def unregister(self, group: str, kind: ClientKind) -> None:
        """Leave a group; an unreachable broker notices this itself. Calling it twice has no effect."""
        self._registrations.leave(group, kind)

    @property
    def is_attended(self) -> bool:
        """Whether a broker process is running, as last checked. Only a process with consumers checks this."""
        return self._dispatch_watch.is_attended

    def on_arrival(self, callback: "Callback[frozenset[int] | None]") -> CallbackHandle:
        """Call `callback` with the keys of queues that have received messages; None means any queue.

        The callback runs in the notification thread, so it must be quick. The callback is called with None when that
        thread begins to listen, also after a reconnect, because earlier arrivals were not received.
        """
        handle = self._arrivals.add(callback)
        self._notifications.wake()
        return handle

    def on_group_change(self, callback: "Callback[str | None]") -> CallbackHandle:
        """Call `callback` with a group whose members or free queues have changed; None means any group.

        The callback runs in the notification thread, so it must be quick. The callback is called with None after a
        reconnect, and also when another database is found behind the address, in the thread that notices this.
        """
        return self._group_changes.add(callback)

    def on_request(self, callback: "Callback[frozenset[str] | None]") -> CallbackHandle:
        """Call `callback` when this client, or one of its `guests`, may have a request.

        The callback's argument contains the ids of the clients with a request; None means any client. The callback runs
        in the notification thread, so it must be quick.
        """
        return self._requests.add(callback)

    @contextmanager
    def awaiting_arrivals(self) -> Iterator[None]:
        """A context manager for a caller that waits for messages.

        Inside it, the client checks dispatch, as a process with consumers always does.
        """
        waiting = object()
        self._waiting_for_arrivals.add(waiting)
        self._dispatch.in_seconds(0)
        self._notifications.wake()
        try:
            yield
        finally:
            self._waiting_for_arrivals.discard(waiting)

    # -- the notification thread -----------------------------------------------------------------

    def _greet(self, connection: Connection) -> None:
        """Prepare a LISTEN connection. The connection takes the presence lock before any registration."""
        self.connections.check(connection)
        try:
            membership.announce(connection, self.client_id)
            self._presence.in_seconds(math.inf)
        except ClientIdInUse:
            if not self._is_open:
                raise
            # Held by our lost connection, which the server considers alive. Listening is possible all the same.
            self._presence.in_seconds(_PRESENCE_RETRY_SECONDS)

    def _answered(self) -> None:
        self._notifications.hurry()

    def _replaced(self) -> None:
        self.routes.clear()
        self._group_changes.call(None)

    def _announce_again(self) -> float | None:
        try:
            membership.announce(self._notifications.connection, self.client_id)
        except ClientIdInUse:
            return _PRESENCE_RETRY_SECONDS
        self._registrations.renew()
        return None

    def _heard(self, heard: Heard) -> None:
        if heard.has_arrivals:
            self._dispatch_watch.arrival_heard()
            self._arrivals.call(heard.queue_keys)
        self._changed_groups |= {without_namespace(group, self.connections.namespace) for group in heard.groups}
        self._asked |= heard.clients & {self.client_id, *self.guests}
        if self._changed_groups or self._asked:
            self._telling.in_seconds(self._wake_limit.seconds_left())

    def _tell(self) -> None:
        self._wake_limit.spend()
        groups, self._changed_groups = self._changed_groups, set()
        asked, self._asked = self._asked, set()
        for group in groups:
            if self._registrations.has_consumer_of(group):
                # Perhaps the broker considered this client dead.
                self._heartbeat.in_seconds(0)
            self._group_changes.call(group)
        if asked:
            self._requests.call(frozenset(asked))

    def _recovered(self) -> None:
        self.watch.distrust()
        self.routes.clear()
        self._registrations.renew()
        self._group_changes.call(None)
        self._requests.call(None)

    def _beat_and_refresh(self) -> float:
        self._registrations.beat()
        self.routes.refresh()
        return self._heartbeat_seconds

    def _ask_attended(self) -> bool:
        attended = is_attended(self._notifications.connection)
        self.answered_at = time.monotonic()
        return attended

    def _tend_dispatch(self) -> float | None:
        is_wanted = self._registrations.has_consumers or self._waiting_for_arrivals
        return self._dispatch_watch.tend() if is_wanted else None


os.register_at_fork(after_in_child=ClientInstance._after_fork_in_child)
