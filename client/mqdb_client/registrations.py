"""Registrations: the groups that a process has joined on one broker.

Registrations survive lost connections until the process leaves the group.

Changes that cannot reach the broker now are sent once the broker can be reached. RocketMQ: the producer and consumer
tables of MQClientInstance.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeAlias

from sqlalchemy import Connection

from mqdb.broker.clients import membership
from mqdb.errors import BrokerUnavailable, IllegalState, MqdbError
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.consumers.subscriptions import StoredSubscriptions
from mqdb.store.silence import in_time

logger = logging.getLogger(__name__)

_Key: TypeAlias = tuple[str, ClientKind]


class Registrations:
    """The registrations of one client. Thread-safe.

    `connect` makes a connection in AUTOCOMMIT mode, and `is_met` tells whether the broker has ever been reached.
    """

    def __init__(
        self,
        client_id: str,
        broker_name: str,
        connect: Callable[[], AbstractContextManager[Connection]],
        is_met: Callable[[], bool],
    ) -> None:
        self._client_id = client_id
        self._broker_name = broker_name
        self._connect = connect
        self._is_met = is_met
        # Also held during requests to the broker: a row that was just removed must not be inserted again.
        self._guard = threading.RLock()
        self._known: dict[_Key, Registration] = {}
        #: The registrations that the broker already had.
        self._accepted: set[_Key] = set()

    @property
    def has_consumers(self) -> bool:
        """Whether any of the clients is a consumer."""
        return any(kind is ClientKind.CONSUMER for _, kind in list(self._known))

    def has_consumer_of(self, group: str) -> bool:
        """Whether any of the clients is a consumer of this group."""
        return (group, ClientKind.CONSUMER) in self._known

    def enter(self, registration: Registration, *, may_be_down: bool) -> Callable[[], None]:
        """Join a group; returns a function that undoes this.

        With `may_be_down`, the client registers with an unreachable broker later.
        Raises IllegalState if this process already has a client of this kind in the group, and the errors of
        `membership.register`.
        """
        with self._guard:
            if _key(registration) in self._known:
                what = f"{registration.kind.lower()} of group {registration.group!r}"
                raise IllegalState(what, "there already, created before in this process; share it, or shut it down")
            replaced = self._register(registration, may_be_down=may_be_down)
        return partial(self._leave_again, registration, replaced)

    def change(self, registration: Registration, *, may_be_down: bool) -> Callable[[], None]:
        """Replace the subscriptions in a joined group; returns a function that undoes this.

        Raises the errors of `membership.register`.
        """
        key = _key(registration)
        with self._guard:
            before, was_accepted = self._known[key], key in self._accepted
            self._accepted.discard(key)
            try:
                replaced = self._register(registration, may_be_down=may_be_down)
            except BaseException:
                self._restore(before, was_accepted)
                raise
        return partial(self._change_back, before, was_accepted, registration, replaced)

    def leave(self, group: str, kind: ClientKind) -> None:
        """Leave a group; an unreachable broker notices this itself. Calling it twice has no effect."""
        with self._guard:
            self._accepted.discard((group, kind))
            if self._known.pop((group, kind), None) is None or not self._is_met():
                return
            try:
                with self._connect() as connection, in_time(connection):
                    membership.unregister(connection, self._client_id, group, kind)
            except MqdbError as error:
                fields = {"group": group, "kind": kind, "reason": str(error)}
                # The broker removes a client without heartbeats.
                logger.debug("left a group without telling the broker", extra=fields)

    def leave_all(self) -> None:
        """Leave all groups."""
        for group, kind in list(self._known):
            self.leave(group, kind)

    def beat(self) -> None:
        """Send a heartbeat, and rejoin the groups that the broker has lost. Raises BrokerUnavailable."""
        with self._guard:
            if not self._known:
                return
            with self._connect() as connection:
                is_present = membership.heartbeat(connection, self._client_id)
            if not is_present:
                fields = {"client_id": self._client_id, "broker": self._broker_name}
                sentence = "broker %(broker)s had removed client %(client_id)s; will re-register it"
                logger.warning(sentence, fields, extra=fields)
            if not is_present or self._accepted != self._known.keys():
                self.renew()

    def renew(self) -> None:
        """Rejoin all groups. Raises BrokerUnavailable."""
        with self._guard, self._connect() as connection:
            for key, registration in self._known.items():
                try:
                    membership.register(connection, registration._replace(is_renewal=key in self._accepted))
                    self._accepted.add(key)
                except BrokerUnavailable:
                    raise
                except MqdbError as error:  # this concerns only this group, and must not affect the others
                    fields = {
                        "group": registration.group,
                        "client_id": self._client_id,
                        "broker": self._broker_name,
                        "reason": str(error),
                    }
                    logger.warning(
                        "broker %(broker)s refused client %(client_id)s in group %(group)s; will retry: %(reason)s",
                        fields,
                        extra=fields,
                    )

    def _register(self, registration: Registration, *, may_be_down: bool) -> StoredSubscriptions | None:
        registration = registration._replace(client_id=self._client_id)
        replaced = None
        try:
            if self._is_met() or not may_be_down:
                with self._connect() as connection:
                    replaced = membership.register(connection, registration)
                self._accepted.add(_key(registration))
        except BrokerUnavailable:
            if not may_be_down:
                raise
        self._known[_key(registration)] = registration
        return replaced

    def _leave_again(self, registration: Registration, replaced: StoredSubscriptions | None) -> None:
        with self._guard:
            self.leave(registration.group, registration.kind)
            self._take_back(registration, replaced)

    def _change_back(
        self, before: Registration, was_accepted: bool, changed: Registration, replaced: StoredSubscriptions | None
    ) -> None:
        with self._guard:
            self._restore(before, was_accepted)
            self._take_back(changed, replaced)

    def _take_back(self, registration: Registration, replaced: StoredSubscriptions | None) -> None:
        if replaced is None:
            return
        try:
            with self._connect() as connection:
                membership.take_back(connection, registration, replaced)
        except MqdbError as error:
            fields = {"group": registration.group, "broker": self._broker_name, "reason": str(error)}
            logger.warning(
                "could not undo a change of subscriptions of group %(group)s on broker %(broker)s: %(reason)s",
                fields,
                extra=fields,
            )

    def _restore(self, before: Registration, was_accepted: bool) -> None:
        self._known[_key(before)] = before
        self._accepted.discard(_key(before))
        if was_accepted:
            self._accepted.add(_key(before))


def _key(registration: Registration) -> _Key:
    return registration.group, registration.kind
