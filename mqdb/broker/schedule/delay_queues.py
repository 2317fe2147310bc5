"""Delay queues: look at the waiting messages of each delay level, and step over a message that the log has lost.

If the next message of a level is lost, the level stands still, and so does retention: only an operator may decide that
the message will never be delivered. RocketMQ: ScheduleMessageService, which skips such a message.
"""

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from mqdb.common.topic import SCHEDULE_TOPIC
from mqdb.errors import MessageMissing, NothingLost, ParameterInvalid
from mqdb.store import operations
from mqdb.store.engine import transaction, translates
from mqdb.store.operations import Verb
from mqdb.store.schedule import delay_queues as schedule
from mqdb.store.schedule import delay_steps
from mqdb.store.schedule.delay_queues import LevelStanding, list_delays


def find_lost(connection: Connection, level: int) -> MessageMissing:
    """The message that a level stands still at.

    Raises ParameterInvalid if the level does not exist, NothingLost if it does not stand still.
    """
    return _lost(list_delays(connection), level)[1]


@translates
def skip_lost(
    connection: Connection, level: int, queue_offset: int, reason: str = "", actor: str | None = None
) -> None:
    """Have a level go on behind the message at this offset, which the log has lost; what waits behind it is delivered.

    That message, and no other one, will never be delivered.
    Raises what `find_lost` raises, and NothingLost where the level stands at another message or none.
    """
    standing, lost = _lost(schedule.list_delays(connection), level)
    if lost.queue_offset != queue_offset:
        raise NothingLost(level)
    try:
        with transaction(connection):
            delay_steps.step_over(connection, level, standing.seq + 1, queue_offset)
            operations.record(
                connection,
                Verb.DELAY_SKIP,
                actor,
                topics=[SCHEDULE_TOPIC],
                object=f"level {level}",
                before={"next_offset": queue_offset, "lost_log_pos": lost.log_pos},
                after={"next_offset": queue_offset + 1},
                reason=reason,
            )
    except IntegrityError as error:  # the level has moved since the look: another session has stepped over a message
        raise NothingLost(level) from error


def _lost(standings: list[LevelStanding], level: int) -> tuple[LevelStanding, MessageMissing]:
    found = {each.level: each for each in standings}.get(level)
    if found is None:
        raise ParameterInvalid("level", level, f"the delay levels are 1 to {len(standings)}")
    if found.lost is None:
        raise NothingLost(level)
    return found, found.lost
