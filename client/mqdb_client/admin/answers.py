"""The results of doing the same work on several brokers."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from mqdb.errors import MqdbError, SomeBrokersFailed


class Named(Protocol):
    """A broker, or an object that stands for a broker."""

    @property
    def name(self) -> str:
        """The name of the broker."""


T = TypeVar("T")
B = TypeVar("B", bound=Named)


@dataclass(frozen=True)
class Answers(Generic[T]):
    """The result or the failure of each broker, by its name, in the order of the brokers."""

    results: dict[str, T] = field(default_factory=dict)
    failures: dict[str, MqdbError] = field(default_factory=dict)

    def without(self, *kinds: type[MqdbError]) -> "Answers[T]":
        """The answers without failures of these kinds, if at least one broker has a result."""
        if not self.results:
            return self
        return Answers(self.results, {name: why for name, why in self.failures.items() if not isinstance(why, kinds)})

    def check(self) -> None:
        """Raise SomeBrokersFailed if a broker has failed, or the failure itself if all failed with the same message."""
        reasons = {name: str(error) for name, error in self.failures.items()}
        if not self.results and len(set(reasons.values())) == 1:
            raise next(iter(self.failures.values()))
        if reasons:
            raise SomeBrokersFailed(reasons, tuple(self.results))


@contextmanager
def noting(answers: Answers[T], broker: Named) -> Iterator[None]:
    """A context manager around the work for a broker; it records an MqdbError that the work raises."""
    try:
        yield
    except MqdbError as error:
        answers.failures[broker.name] = error


def ask_each(brokers: Iterable[B], work: Callable[[B], T]) -> Answers[T]:
    """Do the work for each broker, in order. After an MqdbError, the work continues with the next broker."""
    answers: Answers[T] = Answers()
    for broker in brokers:
        with noting(answers, broker):
            answers.results[broker.name] = work(broker)
    return answers
