"""What a broker says about timers. It writes it down when it starts; whoever sends obeys.

RocketMQ: MessageStoreConfig.timerMaxDelaySec.
"""

from datetime import timedelta

from sqlalchemy import Connection, ScalarSelect, select, update

from mqdb.store.tables import broker

_MILLISECOND = timedelta(milliseconds=1)


def timer_max_delay_ms() -> ScalarSelect[int | None]:
    """How far ahead a time of delivery may lie, for a statement that obeys it; NULL for as far as one likes."""
    return select(broker.c.timer_max_delay_ms).scalar_subquery()


def find_max_delay(connection: Connection) -> timedelta | None:
    """How far ahead a time of delivery may lie; None for as far as one likes."""
    milliseconds = connection.scalar(select(broker.c.timer_max_delay_ms))
    return None if milliseconds is None else milliseconds * _MILLISECOND


def replace_max_delay(connection: Connection, max_delay: timedelta | None) -> None:
    """Let it be this, in the caller's transaction, for what is sent from now on."""
    milliseconds = None if max_delay is None else max(max_delay // _MILLISECOND, 1)
    connection.execute(update(broker).values(timer_max_delay_ms=milliseconds))
