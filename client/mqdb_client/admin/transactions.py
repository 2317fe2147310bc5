"""Half messages, and those whose producers do not say how their transactions ended."""

from collections.abc import Sequence

from mqdb.broker.transactions import transactions
from mqdb.broker.transactions.transactions import Resolution
from mqdb.common.transaction import HalfState
from mqdb.store.transactions.half_messages import HalfMessage
from mqdb_client.admin.subject import Subject
from mqdb_client.option_rules import LIMIT


class Transactions(Subject):
    """The half messages of a broker."""

    def resolve(self, transaction_id: str, resolution: Resolution, *, actor: str | None = None) -> HalfMessage:
        """End a half message by hand, or have one that was discarded asked about again; returns what it is then.

        A role that may operate the topic of a half message needs the checker of `mqdb serve` to have met it, and finds
        it until its end.

        Raises HalfMessageNotFound; HalfMessageClosed for one that has ended, or was not discarded and is to be resumed;
        TopicNotFound if its real topic is gone; ParameterInvalid for a text that is no id.
        """
        with self._access.connected() as connection:
            return transactions.resolve(connection, transaction_id, resolution, actor=actor or self._access.actor)

    def list(
        self,
        states: Sequence[HalfState] = (HalfState.PREPARED, HalfState.DISCARDED),
        group: str | None = None,
        limit: int = 100,
    ) -> list[HalfMessage]:
        """Half messages in these states, the oldest first; by default those without an end.

        `group` is that of their producers.
        """
        LIMIT.check("limit", limit)
        with self._access.dispatched() as connection:
            return transactions.list_halves(connection, states, group, limit)
