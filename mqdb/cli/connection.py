"""From settings to connections: to the databases that they name, or to the embedded one that runs in the home.

A command that works on several brokers does on each what it can, and says in the end where it could not.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from mqdb.errors import MqdbError, ParameterInvalid, SomeBrokersFailed

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from mqdb.dsn import BrokerDsn
    from mqdb.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True)
class Answers(Generic[T]):
    """What came of a command on each broker, by the brokers' names."""

    results: dict[str, T] = field(default_factory=dict)
    failures: dict[str, MqdbError] = field(default_factory=dict)

    def without(self, *kinds: type[MqdbError]) -> "Answers[T]":
        """The same, where errors of these kinds do not count as long as another broker has a result."""
        if not self.results:
            return self
        return Answers(self.results, {name: why for name, why in self.failures.items() if not isinstance(why, kinds)})

    def check(self) -> None:
        """Raises SomeBrokersFailed if any has failed; the failure itself if all have, with the same words."""
        reasons = {name: str(error) for name, error in self.failures.items()}
        if not self.results and len(set(reasons.values())) == 1:
            raise next(iter(self.failures.values()))
        if reasons:
            raise SomeBrokersFailed(reasons, tuple(self.results))


def ask_each(brokers: "Sequence[BrokerDsn]", work: "Callable[[BrokerDsn], T]") -> Answers[T]:
    """Do the work for each broker, in their order; where it raises an error of mqdb, it goes on with the next one."""
    answers: Answers[T] = Answers()
    for broker in brokers:
        try:
            answers.results[broker.name] = work(broker)
        except MqdbError as error:
            answers.failures[broker.name] = error
    return answers


def chosen_brokers(settings: "Settings", names: Sequence[str] | None) -> "tuple[BrokerDsn, ...]":
    """The brokers of these names in the order of the list, all of them without names.

    Raises ParameterInvalid for an unknown name, BrokerUnavailable when the embedded one does not run.
    """
    from mqdb.broker_list import brokers_of

    brokers = brokers_of(settings)
    known = [broker.name for broker in brokers]
    for name in names or ():
        if name not in known:
            raise ParameterInvalid("broker", name, f"there is no such broker; the brokers are: {', '.join(known)}")
    return tuple(broker for broker in brokers if not names or broker.name in names)


def connected(settings: "Settings") -> "AbstractContextManager[Connection]":
    """As `connected_to`, for the one broker of the settings. Raises SettingInvalid for several."""
    from mqdb.broker_list import brokers_of

    return connected_to(settings.broker or brokers_of(settings)[0])


@contextmanager
def connected_to(broker: "BrokerDsn") -> "Iterator[Connection]":
    """A connection to a broker, in AUTOCOMMIT. Raises a SchemaMismatch unless its schema is the one of this mqdb."""
    from mqdb.broker.query import broker_info
    from mqdb.dsn import redact
    from mqdb.store.engine import create_engine, translated
    from mqdb.store.migrations import check_schema

    target = redact(broker.dsn)
    engine = create_engine(broker.dsn, application_name="mqdb command line", pool_size=1)
    try:
        with translated(target), engine.connect() as connection:
            check_schema(connection)
            broker_info(connection).require_name(broker.name, target)
            yield connection
    finally:
        engine.dispose()
