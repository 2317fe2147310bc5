"""Recurring sends."""

from datetime import datetime

from mqdb.broker.schedule import cron
from mqdb.broker.schedule.cron import CatchUp, Cron, NextTime
from mqdb.common.message import Message
from mqdb.errors import ExtraMissing
from mqdb.store.schedule.cron import CronSummary, list_crons, now
from mqdb_client.admin.subject import Subject
from mqdb_client.option_rules import LIMIT, one_of


def _next_time() -> NextTime:
    try:
        from mqdb.service.cron_times import next_time
    except ModuleNotFoundError as error:
        raise ExtraMissing("apscheduler", "server") from error
    return next_time


class Crons(Subject):
    """The recurring sends of a broker. The leading `mqdb serve` sends exactly one message for each scheduled time."""

    def add(
        self,
        name: str,
        text: str,
        message: Message,
        *,
        timezone: str = "UTC",
        sharding_key: str | None = None,
        catch_up: CatchUp = CatchUp.ONCE,
        actor: str | None = None,
        principal: str | None = None,
    ) -> datetime:
        """Add a recurring send; returns the time of its first message.

        `text` is a cron text such as `30 7 * * mon-fri` or `@hourly`, and `timezone` the IANA name of its time zone.
        Messages with the same sharding key go to the same queue. `catch_up` determines which messages are sent for
        times that passed while no broker was running. With `principal`, a firing is skipped unless this principal may
        operate the topic and send to it; only the owner of the broker may name a principal, and each principal can have
        at most 100 crons. Raises CronInvalid, CronExists, TopicNotFound, TopicNotWritable, ParameterInvalid,
        NameInvalid, MessageIllegal; ExtraMissing without `mqdb[server]`, which is needed to read cron texts.
        """
        return self._add(Cron(name, text, message, timezone, sharding_key, catch_up), actor, principal)

    def declare(
        self,
        application: str,
        name: str,
        text: str,
        message: Message,
        *,
        timezone: str = "UTC",
        sharding_key: str | None = None,
        catch_up: CatchUp = CatchUp.ONCE,
        actor: str | None = None,
    ) -> datetime:
        """Add a recurring send declared in an application's code, or change the existing one to these values.

        An existing recurring send keeps its counts, stays paused if it was paused, and keeps its next time unless
        `text` or `timezone` changes. Returns the next time that matches `text`. Raises the errors of `add`, and
        CronExists if the recurring send belongs to another application or to no application.
        """
        return self._add(Cron(name, text, message, timezone, sharding_key, catch_up, application), actor)

    def _add(self, new: Cron, actor: str | None, principal: str | None = None) -> datetime:
        next_time = _next_time()
        one_of(CatchUp).check("catch_up", new.catch_up)
        with self._access.connected() as connection:
            return cron.add_cron(connection, new, next_time, actor=actor or self._access.actor, principal=principal)

    def next_times(self, text: str, timezone: str = "UTC", count: int = 5) -> list[datetime]:
        """The next times that match a cron text, from now on by the broker's clock. Stores nothing.

        Raises CronInvalid, ParameterInvalid for an unknown time zone, and ExtraMissing without `mqdb[server]`.
        """
        next_time = _next_time()
        LIMIT.check("count", count)
        with self._access.connected() as connection:
            times = [next_time(text, timezone, now(connection))]
        while len(times) < count:
            times.append(next_time(text, timezone, times[-1]))
        return times

    def pause(self, name: str, *, actor: str | None = None) -> None:
        """Stop a recurring send from firing until it is resumed. Raises CronNotFound."""
        with self._access.connected() as connection:
            cron.pause_cron(connection, name, actor=actor or self._access.actor)

    def resume(self, name: str, *, actor: str | None = None) -> datetime:
        """Let a recurring send fire again; returns its next time.

        No messages are sent for times that passed during the pause.
        Raises CronNotFound; CronInvalid and ParameterInvalid if its row was changed to invalid values; ExtraMissing
        without `mqdb[server]`.
        """
        next_time = _next_time()
        with self._access.connected() as connection:
            return cron.resume_cron(connection, name, next_time, actor=actor or self._access.actor)

    def remove(self, name: str, *, actor: str | None = None) -> None:
        """Remove a recurring send; the messages that it sent are kept. Raises CronNotFound."""
        with self._access.connected() as connection:
            cron.remove_cron(connection, name, actor=actor or self._access.actor)

    def list(self) -> list[CronSummary]:
        """All recurring sends, by name."""
        with self._access.connected() as connection:
            return list_crons(connection)
