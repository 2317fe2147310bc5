"""The cluster: the brokers that a client works with, each one a database.

RocketMQ: the name server's view of the brokers. The list of DSNs replaces a name server. A client can start while some
brokers are down if at least one is up; the others are added when they come up.
"""

from contextlib import ExitStack

from mqdb.errors import BrokerUnavailable
from mqdb.settings import Settings
from mqdb.settings.broker_list import brokers_of
from mqdb.store.clients.clients import Registration
from mqdb_client.client_config import DEFAULT_INSTANCE_NAME
from mqdb_client.instance import ClientInstance


class Cluster:
    """The client instances of a process for the brokers in its settings, in the order of the list."""

    def __init__(self, settings: Settings, instance_name: str = DEFAULT_INSTANCE_NAME) -> None:
        """Connect. Release the instances with `release`.

        Raises BrokerUnavailable if no broker can be reached; for a reachable broker, the errors of
        `ClientInstance.acquire`.
        """
        brokers = brokers_of(settings)
        may_be_down = len(brokers) > 1
        with ExitStack() as undo:
            self.instances: tuple[ClientInstance, ...] = ()
            for broker in brokers:
                pool_dsn = settings.pool_dsn_of(broker.name)
                instance = ClientInstance.acquire(broker, pool_dsn, instance_name, may_be_down=may_be_down)
                undo.callback(instance.release)
                self.instances += (instance,)
            if not any(instance.is_met for instance in self.instances):
                targets = ", ".join(f"{instance.broker_name} ({instance.target})" for instance in self.instances)
                raise BrokerUnavailable(targets, "none of them can be reached")
            self._undo = undo.pop_all()

    @property
    def is_single(self) -> bool:
        """Whether the cluster has only one broker."""
        return len(self.instances) == 1

    @property
    def is_forked(self) -> bool:
        """Whether this process is a forked child of the process that made the cluster."""
        return self.instances[0].is_forked

    def check_process(self) -> None:
        """Raise IllegalState in a forked child of the process that made the cluster."""
        self.instances[0].check_process()

    def register(self, registration: Registration) -> None:
        """Join a group on all brokers or on none, until `release`.

        Raises IllegalState if this process already has a client of this kind in the group, and the errors of
        `membership.register`.
        """
        with ExitStack() as undo:
            for instance in self.instances:
                undo.callback(instance.register(registration, may_be_down=not self.is_single))
            undo.pop_all()
        for instance in self.instances:
            self._undo.callback(instance.unregister, registration.group, registration.kind)

    def change(self, registration: Registration) -> None:
        """Replace the subscriptions of a group on all brokers or on none. Raises the errors of `membership.register`.

        If one broker refuses, the others restore the subscriptions that they had stored. Registering the old
        subscriptions again would fail if there are other members, because the old version would then be too low.
        """
        with ExitStack() as undo:
            for instance in self.instances:
                undo.callback(instance.change(registration, may_be_down=not self.is_single))
            undo.pop_all()

    def release(self) -> None:
        """Leave the groups and release the instances; the last user of an instance closes it.

        Calling it twice has no effect.
        """
        self._undo.close()
