"""Half messages, including half messages whose producers do not report the end of the transaction."""

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
        """End a half message by hand, or resume the checks of a discarded half message; returns it as changed.

        A role with the right to operate the topic can resolve a half message from the time when the checker of `mqdb
        serve` has found it until it ends.

        Raises HalfMessageNotFound; HalfMessageClosed if it has ended, or if it is to be resumed but was not discarded;
        TopicNotFound if its real topic is gone; ParameterInvalid if `transaction_id` is not a transaction id.
        """
        with self._access.connected() as connection:
            return transactions.resolve(connection, transaction_id, resolution, actor=actor or self._access.actor)

    def list(
        self,
        states: Sequence[HalfState] = (HalfState.PREPARED, HalfState.DISCARDED),
        group: str | None = None,
        limit: int = 100,
    ) -> list[HalfMessage]:
        """Half messages in these states, oldest first; by default, half messages that have not ended.

        `group` is the producers' group.
        """
        LIMIT.check("limit", limit)
        with self._access.dispatched() as connection:
            return transactions.list_halves(connection, states, group, limit)
