"""The common parts of the deliverers of delayed messages and timers: the size of a round, and the time of the next."""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection, func, select

from mqdb.broker.schedule.delay import MAX_MESSAGES
from mqdb.service.service import Context, CountsT, LoopService


@dataclass(frozen=True, slots=True)
class DelivererConfig:
    """The configuration of a deliverer."""

    first_messages: int = 1_000
    """The messages of the first round; the number grows after short full rounds, and shrinks after long ones."""
    max_messages: int = MAX_MESSAGES
    long_round: timedelta = timedelta(milliseconds=250)
    """With large bodies, rounds of fewer messages keep other work from waiting."""
    longest_pause: timedelta = timedelta(milliseconds=100)
    """The maximum pause while messages arrive. Source: ScheduleMessageService.DELAY_FOR_A_WHILE."""
    longest_wait: timedelta = timedelta(seconds=1)
    """The maximum wait for a message that is not due, while no message arrives: the server's clock may be set."""
    shortest_pause: timedelta = timedelta(milliseconds=10)
    """The minimum pause, so that messages that become due one by one are delivered several at a time."""


class Deliverer(LoopService[CountsT]):
    """Delivers round by round."""

    def __init__(self, context: Context, config: DelivererConfig) -> None:
        super().__init__(context)
        self._config = config
        self._messages = min(config.first_messages, config.max_messages)
        self._first_segment = 0

    def prepare(self, connection: Connection) -> None:
        # A plan made while segments and slots are empty would read them completely after they have filled.
        names = "enable_seqscan", "enable_bitmapscan"
        connection.execute(select(*(func.set_config(name, "off", False) for name in names)))
        self._first_segment = 0

    def pause_when_woken(self, since_round: timedelta) -> timedelta:
        # Not immediately: the message that woke it is on its way to a consumer.
        return max(self._config.longest_pause - since_round, self._config.shortest_pause)

    def _adapt(self, messages: int, took: timedelta) -> None:
        """Take fewer messages after a long round, and more after a full round that was short."""
        if messages and took > self._config.long_round:
            self._messages = max(self._messages // 2, 1)
        elif messages >= self._messages:
            self._messages = min(self._messages * 2, self._config.max_messages)
