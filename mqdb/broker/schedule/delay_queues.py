"""Delay queues: show the waiting messages of each delay level, and skip a message that the log has lost.

If the next message of a level is lost, the level is stuck, and so is retention: only an operator may decide that the
message will never be delivered. RocketMQ: ScheduleMessageService, which skips such a message.
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
    """The lost message at which a level is stuck.

    Raises ParameterInvalid if the level does not exist, NothingLost if it is not stuck.
    """
    return _lost(list_delays(connection), level)[1]


@translates
def skip_lost(
    connection: Connection, level: int, queue_offset: int, reason: str = "", actor: str | None = None
) -> None:
    """Let a level continue after the lost message at this offset; the messages behind it are delivered.

    Only the lost message will never be delivered.
    Raises the errors of `find_lost`, and NothingLost if the level is stuck at another message, or not at all.
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
    except IntegrityError as error:  # the level has moved since the query: another session has skipped a message
        raise NothingLost(level) from error


def _lost(standings: list[LevelStanding], level: int) -> tuple[LevelStanding, MessageMissing]:
    found = {each.level: each for each in standings}.get(level)
    if found is None:
        raise ParameterInvalid("level", level, f"the delay levels are 1 to {len(standings)}")
    if found.lost is None:
        raise NothingLost(level)
    return found, found.lost
