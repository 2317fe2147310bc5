"""The permissions of a person on the topics and groups of a broker. All pages check permissions here.

An operator may do everything, and a viewer may see everything. For a principal the database decides by the rights that
`mqdb acl` has granted (docs/access.md). A principal sees names and numbers without any right, but needs the right to
read a topic to see its messages or dead letters. A right on a group covers its retry topic and its dead letter topic.
"""

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from mqdb.dashboard.login_sessions import PersonStanding, Session
from mqdb.errors import Denied
from mqdb_client import BrokerAdmin, Resource, Rights

Kind: TypeAlias = Literal["send", "read", "operate", "operate_group", "admin", "admin_group"]

_READ: Final = "read"


class PersonDenied(Denied):
    """A person lacks a right. The error does not reveal whether the topic or group exists."""

    person: str
    access: str
    resource_type: str
    resource: str
    sentence = (
        "{person!r} has no right {access} on {resource_type} {resource!r}; "
        "the owner of the broker grants it with: mqdb acl grant"
    )


class NothingChanges(Denied):
    """The person is a viewer, or the dashboard is read-only."""

    person: str
    sentence = "{person!r} may see these pages, but not change anything"


class Permissions:
    """The permissions of a person. Each method queries the database once for a principal, and never for others."""

    def __init__(self, session: Session, broker: BrokerAdmin, *, read_only: bool) -> None:
        self._session = session
        self._broker = broker
        self._read_only = read_only

    @property
    def principal(self) -> str | None:
        """The name of a person whose permissions are rights of `mqdb acl`; None for all other people."""
        return self._session.person if self._session.standing is PersonStanding.PRINCIPAL else None

    def among(self, names: Iterable[str], *kinds: Kind) -> frozenset[str]:
        """The subset of these topics or groups on which the person has one of these rights."""
        asked, possible = frozenset(names), self._possible(kinds)
        if self._session.standing is not PersonStanding.PRINCIPAL:
            return asked if possible else frozenset()
        wanted = {Resource(*Rights.KINDS[kind], name) for kind in possible for name in asked}
        return frozenset(each.name for each in self._broker.acl.held(self._session.person, wanted))

    def may(self, name: str, *kinds: Kind) -> bool:
        """Whether the person has one of these rights on a topic or a group."""
        return name in self.among([name], *kinds)

    def may_somewhere(self, kind: Kind) -> bool:
        """Whether the person has this right on any topic or group."""
        possible = bool(self._possible([kind]))
        if self._session.standing is not PersonStanding.PRINCIPAL or not possible:
            return possible
        return any(each.resource[:2] == Rights.KINDS[kind] for each in self._broker.acl.list(self._session.person))

    def require(self, name: str, *kinds: Kind) -> str:
        """Return the person, as the actor of a change. Raises Denied if the person lacks all of these rights."""
        if not self.may(name, *kinds):
            raise self._denied(kinds[-1], name)
        return self._session.person

    def require_somewhere(self, kind: Kind) -> None:
        """Raise Denied if the person does not have this right on any topic or group."""
        if not self.may_somewhere(kind):
            raise self._denied(kind, "*")

    def _denied(self, kind: Kind, name: str) -> Denied:
        if not self._possible([kind]):
            return NothingChanges(self._session.person)
        access, type_ = Rights.KINDS[kind]
        return PersonDenied(self._session.person, access, type_.lower(), name)

    def _possible(self, kinds: Iterable[Kind]) -> list[Kind]:
        changes_nothing = self._read_only or self._session.standing is PersonStanding.VIEWER
        return [kind for kind in kinds if kind == _READ or not changes_nothing]
