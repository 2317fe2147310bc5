"""Refusals of a statement that one of its messages may have caused."""

from typing import Final

from mqdb.errors import AccessDenied, MessageIllegal, MqdbError, StorageRefused, TransactionRefused
from mqdb.store.engine import NO_SQLSTATE

# SQLSTATE classes that a single row can cause: data exception, integrity violation, program limit. Empty if the driver
# refused a value.
_FAULTS_OF_A_ROW: Final = ("22", "23", "42501", "54", NO_SQLSTATE)


def may_be_of_one_message(error: MqdbError) -> bool:
    """Whether a single message may have caused the refusal, so the server may accept the statement without it."""
    if isinstance(error, StorageRefused):
        return error.sqlstate.startswith(_FAULTS_OF_A_ROW)
    return isinstance(error, AccessDenied | MessageIllegal | TransactionRefused)
