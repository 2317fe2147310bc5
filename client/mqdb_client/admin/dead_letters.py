"""Dead letters: messages that groups have given up on. RocketMQ: queryDlqMessage, resendDlqMessage of the dashboard."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from mqdb.broker import dead_letters
from mqdb.broker.dead_letters import Chosen, DeadLetterFilter, Redrive
from mqdb.common.topic import Perm, check_send_topic
from mqdb.common.unique_id import parse_unique_id
from mqdb.errors import DeadLetterNotFound, TopicNotFound, TopicNotWritable
from mqdb.store.dead_letters import (
    CauseOfDeath,
    DeadLetter,
    DeathsByHour,
    GroupLetters,
    PastRedrive,
    RedriveResult,
    WholeDeadLetter,
    count_by_group,
    past_redrives,
    redriven_at,
)
from mqdb.store.topics.topics import find_topic
from mqdb_client.admin.subject import Subject
from mqdb_client.option_rules import LIMIT, or_none, whole

#: The number of messages that `redrive` sends in one transaction. Their bodies stay in the database.
MOST_AT_A_TIME = 500


class DeadLetters(Subject):
    """The dead letters of a broker.

    A method that takes a filter raises GroupNotFound, and ParameterInvalid for the filter's `where`.
    """

    def groups(self) -> list[GroupLetters]:
        """The groups that have dead letters, each with the number of its dead letters.

        The cost does not depend on the number of dead letters.
        """
        with self._access.dispatched() as connection:
            return count_by_group(connection)

    def causes(self, wanted: DeadLetterFilter) -> list[CauseOfDeath]:
        """Count the matching dead letters by group, topic and exception."""
        with self._access.dispatched() as connection:
            return dead_letters.causes_of_death(connection, wanted)

    def by_hour(self, wanted: DeadLetterFilter, hours: int = 24) -> list[DeathsByHour]:
        """Count the matching dead letters of the last hours by topic, exception and hour."""
        whole(1, 24 * 365).check("hours", hours)
        with self._access.dispatched() as connection:
            return dead_letters.deaths_by_hour(connection, wanted, hours)

    def count(self, wanted: DeadLetterFilter) -> int:
        """Count the matching dead letters."""
        with self._access.dispatched() as connection:
            return dead_letters.count_dead_letters(connection, wanted)

    def show(self, message_id: str) -> list[tuple[WholeDeadLetter, list[PastRedrive]]]:
        """A message's dead letters in full, with their past redrives: one letter for each time a group gave up on it.

        Raises DeadLetterNotFound; ParameterInvalid if `message_id` is not a message id.
        """
        wanted = DeadLetterFilter(ids=(parse_unique_id(message_id),))
        with self._access.dispatched() as connection:
            letters = dead_letters.show_dead_letters(connection, wanted)
            if not letters:
                raise DeadLetterNotFound(message_id)
            return [(letter, past_redrives(connection, letter.log_pos)) for letter in letters]

    def redriven(self, positions: Sequence[int]) -> dict[int, datetime]:
        """The time of the last redrive of each letter at these positions, except letters that were never redriven."""
        with self._access.connected() as connection:
            return redriven_at(connection, positions)

    def read(self, wanted: DeadLetterFilter) -> Iterator[WholeDeadLetter]:
        """Yield the matching dead letters with their bodies, oldest first.

        The letters are read a few at a time, in one transaction.
        """
        with self._access.dispatched() as connection:
            yield from dead_letters.read_dead_letters(connection, wanted)

    def choose(
        self, wanted: DeadLetterFilter, *, again: bool = False, limit: int | None = None, to_topic: str | None = None
    ) -> Chosen:
        """Choose the dead letters for a redrive, oldest first. `again` includes letters that were redriven before.

        Raises TopicNotFound, TopicNotWritable, TopicNotAllowed and NameInvalid for `to_topic`.
        """
        or_none(LIMIT).check("limit", limit)
        if to_topic is not None:
            check_send_topic(to_topic)
        with self._access.dispatched() as connection:
            chosen = dead_letters.choose(connection, wanted, again=again, limit=limit)
            # Otherwise it would fail later, for each message.
            target = find_topic(connection, to_topic) if to_topic is not None and chosen.positions else None
        if to_topic is not None and chosen.positions:
            if target is None:
                raise TopicNotFound(to_topic)
            if not target.config.perm & Perm.WRITE:
                raise TopicNotWritable(to_topic, target.config.perm)
        return chosen

    def redrive(
        self,
        wanted: DeadLetterFilter,
        *,
        to_topic: str | None = None,
        body: bytes | None = None,
        again: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
        actor: str | None = None,
    ) -> list[RedriveResult]:
        """Send dead letters again: to the group that failed to consume them, or to `to_topic` as if they were new.

        `body` replaces the body of a single message. The letters are sent in batches, each in its own transaction, so
        after an error another call continues with the remaining letters. With `dry_run` nothing changes. Raises the
        errors of `choose`, and MessageIllegal for an illegal body. A message that cannot be redriven is reported as a
        result.
        """
        condition = f"{wanted} --limit {limit}" if limit else str(wanted)
        how = Redrive(condition, to_topic, body, again)
        positions = self.choose(wanted, again=again, limit=limit, to_topic=to_topic).positions
        results: list[RedriveResult] = []
        for start in range(0, len(positions), MOST_AT_A_TIME):
            batch = positions[start : start + MOST_AT_A_TIME]
            results += self.redrive_batch(batch, how, dry_run=dry_run, actor=actor)
        return results

    def redrive_batch(
        self,
        positions: Sequence[int],
        how: Redrive,
        *,
        dry_run: bool = False,
        actor: str | None = None,
    ) -> list[RedriveResult]:
        """Redrive the dead letters at these positions, as returned by `choose`, in one transaction."""
        with self._access.connected() as connection:
            if dry_run:
                return dead_letters.plan_redrive(connection, positions, how)
            return dead_letters.redrive_messages(connection, positions, how, actor=actor or self._access.actor)

    def list(self, wanted: DeadLetterFilter, limit: int | None = None) -> list[DeadLetter]:
        """The matching dead letters, newest first."""
        or_none(LIMIT).check("limit", limit)
        with self._access.dispatched() as connection:
            return dead_letters.list_dead_letters(connection, wanted, limit)
