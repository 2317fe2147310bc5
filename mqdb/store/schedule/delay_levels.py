"""Delay levels and their delays. The broker writes them when it starts, clients only read them.

RocketMQ: ScheduleMessageService.delayLevelTable.
"""

from datetime import datetime, timedelta

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    cast,
    delete,
    extract,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from mqdb.common.delay_level import DelayLevels
from mqdb.common.topic import SCHEDULE_TOPIC
from mqdb.store.tables import delay_level, queue, topic


def delivery_time(now: ColumnElement[datetime], delay: ColumnElement[timedelta]) -> ColumnElement[int]:
    """The tags_code of a message that is stored now and waits for `delay`: milliseconds since 1970, rounded up.

    Rounding up avoids early deliveries. The sum is in seconds: `now + delay` would make a day 23 or 25 hours twice a
    year.
    """
    seconds = extract("epoch", now) + extract("epoch", delay)
    return cast(func.ceil(seconds * literal_column("1000")), BigInteger)


def find(connection: Connection) -> DelayLevels:
    """The current levels."""
    return DelayLevels(tuple(connection.scalars(select(delay_level.c.delay).order_by(delay_level.c.level))))


def replace(connection: Connection, levels: DelayLevels) -> None:
    """Replace the levels, in the caller's transaction.

    SCHEDULE_TOPIC_XXXX gets a queue for each new level. The topic keeps the queues of removed levels, whose waiting
    messages are delivered at their times.
    """
    rows = [{"level": level, "delay": delay} for level, delay in enumerate(levels.delays, start=1)]
    upsert = insert(delay_level).values(rows)
    connection.execute(upsert.on_conflict_do_update(index_elements=["level"], set_={"delay": upsert.excluded.delay}))
    connection.execute(delete(delay_level).where(delay_level.c.level > len(rows)))

    nums = {name: func.greatest(topic.c[name], len(rows)) for name in ("read_queue_nums", "write_queue_nums")}
    enlarged = update(topic).where(topic.c.topic == SCHEDULE_TOPIC).values(nums).returning(topic.c.topic_id)
    topic_id = connection.scalars(enlarged).one()
    numbers = select(literal_column(str(topic_id)), func.generate_series(0, len(rows) - 1))
    connection.execute(insert(queue).from_select(["topic_id", "queue_id"], numbers).on_conflict_do_nothing())
