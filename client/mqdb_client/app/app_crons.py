"""The crons of an application, as declared in its code and as stored in the broker."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from mqdb.broker.schedule.cron import CatchUp
from mqdb.common.message import Message
from mqdb.common.topic import MAX_TOPIC_LENGTH, check_name, check_topic_name
from mqdb.errors import ParameterInvalid, TopicNotFound
from mqdb.settings import Settings
from mqdb_client.admin.admin import Admin, BrokerAdmin
from mqdb_client.app.bodies import BODY_PROPERTY, encode
from mqdb_client.option_rules import one_of


@dataclass(frozen=True, slots=True)
class AppCron:
    """A cron of an application.

    Everything except the cron text is checked on construction. Raises NameInvalid, ParameterInvalid.
    """

    name: str
    text: str
    timezone: str
    topic: str
    group: str
    """The group of the cron's listener."""
    catch_up: CatchUp

    def __post_init__(self) -> None:
        check_name("cron", self.name, MAX_TOPIC_LENGTH)
        check_topic_name(self.topic)
        if "|" in self.name:
            raise ParameterInvalid("name", self.name, "is also the tag of the messages, and a tag cannot contain |")
        one_of(CatchUp).check("catch_up", self.catch_up)

    @property
    def tag(self) -> str:
        """The tag of the cron's messages, which tells apart crons that share a topic."""
        return self.name

    def message(self) -> Message:
        """The message that the cron sends."""
        body = encode(self.name)
        return Message(self.topic, body.content, self.tag, properties={BODY_PROPERTY: body.mark})


class AppCrons:
    """The crons of one application.

    With several brokers, only the first broker stores the crons, because each broker would send the messages.
    """

    def __init__(self, application: str, settings: Settings) -> None:
        self._application = application
        self._admin = Admin(settings=settings)

    def __enter__(self) -> "AppCrons":
        self._admin.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    @property
    def _broker(self) -> BrokerAdmin:
        return self._admin.chosen()[0]

    def declare(self, crons: Iterable[AppCron]) -> None:
        """Create the crons with their topics. Raises the errors of `Crons.declare`."""
        broker = self._broker
        for cron in crons:
            try:
                broker.topics.show(cron.topic)
            except TopicNotFound:
                broker.topics.create(cron.topic, queues=1)
            broker.crons.declare(
                self._application, cron.name, cron.text, cron.message(), timezone=cron.timezone, catch_up=cron.catch_up
            )

    def next_times(self, crons: Iterable[AppCron]) -> dict[str, datetime | None]:
        """The next time of each cron; None for a paused cron. Removed crons are left out."""
        known = {cron.name for cron in crons}
        stored = self._broker.crons.list()
        return {each.name: None if each.is_paused else each.next_at for each in stored if each.name in known}

    def strays(self, crons: Iterable[AppCron]) -> list[str]:
        """The names of the application's crons on the broker that are no longer in its code."""
        known = {cron.name for cron in crons}
        stored = self._broker.crons.list()
        return [each.name for each in stored if each.application == self._application and each.name not in known]

    def remove(self, names: Iterable[str]) -> None:
        """Remove crons. Raises CronNotFound."""
        for name in names:
            self._broker.crons.remove(name)
