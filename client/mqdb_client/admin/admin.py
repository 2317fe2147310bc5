"""The administrator's view of brokers. RocketMQ: DefaultMQAdminExt, mqadmin."""

from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from mqdb.errors import ParameterInvalid
from mqdb.settings import Settings
from mqdb.settings.broker_list import brokers_of
from mqdb_client.admin.acl import Acl
from mqdb_client.admin.answers import Answers, ask_each
from mqdb_client.admin.broker_access import BrokerAccess
from mqdb_client.admin.consumers import Consumers
from mqdb_client.admin.crons import Crons
from mqdb_client.admin.dead_letters import DeadLetters
from mqdb_client.admin.delays import Delays
from mqdb_client.admin.doctor import Doctor
from mqdb_client.admin.groups import Groups
from mqdb_client.admin.messages import Messages
from mqdb_client.admin.offsets import Offsets
from mqdb_client.admin.operations import Operations
from mqdb_client.admin.retention import Retention
from mqdb_client.admin.selectors import Selectors
from mqdb_client.admin.subject import Subject
from mqdb_client.admin.timers import Timers
from mqdb_client.admin.topics import Topics
from mqdb_client.admin.transactions import Transactions
from mqdb_client.admin.versions import Versions, read_versions
from mqdb_client.client_config import settings_of

T = TypeVar("T")


class BrokerAdmin(Subject):
    """Shows and changes one broker, by subject.

    Each method that changes something takes an `actor`, the name of the person or program behind the change; the
    default is the setting `actor`. `operations` lists the changes and their actors.
    """

    def __init__(self, access: BrokerAccess) -> None:
        super().__init__(access)
        self.acl = Acl(access)
        self.topics = Topics(access)
        self.groups = Groups(access)
        self.consumers = Consumers(access)
        self.offsets = Offsets(access)
        self.messages = Messages(access)
        self.operations = Operations(access)
        self.dead_letters = DeadLetters(access)
        self.timers = Timers(access)
        self.delays = Delays(access)
        self.crons = Crons(access)
        self.transactions = Transactions(access)
        self.selectors = Selectors(access)
        self.retention = Retention(access)
        self.doctor = Doctor(access)

    @property
    def name(self) -> str:
        """The name of the broker."""
        return self._access.name

    def check(self) -> None:
        """Connect if not connected yet. Raises the errors common to all methods if the broker cannot be reached."""
        with self._access.connected():
            pass

    def versions(self) -> Versions:
        """The versions of the schema and of PostgreSQL."""
        with self._access.connected() as connection:
            return read_versions(connection)


class Admin(BrokerAdmin):
    """Manages the brokers named in the settings: it can do everything that the commands of `mqdb` can.

        with Admin() as admin:
            admin.topics.create("orders", queues=16)

    With one broker, as in this example, each subject is an attribute of the Admin. Several brokers are independent, so
    each is addressed separately:

        admin.on("broker-a").topics.create("orders")
        admin.on_each(lambda broker: broker.topics.create("orders")).check()

    Without `mqdb serve`, methods that read messages, lags or dead letters first dispatch all sent messages to their
    queues, unless the sessions are read-only. If `mqdb serve` is running, it dispatches messages a few milliseconds
    after each send.

    All methods that only read also work on a standby. On a standby, these methods see the state of the primary up to
    the last replayed change, including the messages dispatched until then.

    Thread-safe. Besides the errors in its own documentation, each method can raise BrokerUnavailable and its
    subclasses, SchemaMismatch, StorageRefused, and ParameterInvalid for an argument of the wrong type or a string with
    the character NUL.
    """

    def __init__(self, dsn: str | None = None, settings: Settings | None = None, *, read_only: bool = False) -> None:
        """Create an Admin without connecting. With `read_only`, any attempt to change something raises StorageRefused.

        Raises SettingInvalid, ParameterInvalid if both `dsn` and `settings` are given, and BrokerUnavailable for an
        embedded broker that is not running.
        """
        settings = settings_of(dsn, settings)
        brokers, actor = brokers_of(settings), settings.actor
        super().__init__(BrokerAccess(*brokers, actor=actor, read_only=read_only))
        self.brokers: tuple[BrokerAdmin, ...] = tuple(
            BrokerAdmin(BrokerAccess(each, actor=actor, read_only=read_only)) for each in brokers
        )
        """The individual brokers, in the order of the settings."""
        if len(brokers) == 1:
            self.brokers = (self,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect. The next call of a method reconnects."""
        for broker in self.brokers:
            broker._access.close()

    def on(self, name: str) -> BrokerAdmin:
        """The broker with this name. Raises ParameterInvalid if no broker has this name."""
        return self.chosen([name])[0]

    def on_each(self, work: Callable[[BrokerAdmin], T], names: Sequence[str] | None = None) -> Answers[T]:
        """Run `work` on all brokers, or only on the brokers in `names`, even if it fails on some of them.

        Raises ParameterInvalid for an unknown name. If `work` raises an MqdbError for a broker, the error is that
        broker's answer.
        """
        return ask_each(self.chosen(names), work)

    def chosen(self, names: Sequence[str] | None = None) -> tuple[BrokerAdmin, ...]:
        """The brokers with these names, in the order of the settings; without names, all brokers.

        Raises ParameterInvalid for an unknown name.
        """
        known = [broker.name for broker in self.brokers]
        for name in names or ():
            if name not in known:
                raise ParameterInvalid("broker", name, f"there is no such broker; the brokers are: {', '.join(known)}")
        return tuple(broker for broker in self.brokers if names is None or broker.name in names)
