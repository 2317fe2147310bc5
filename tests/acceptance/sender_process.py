"""A transaction producer of group `senders`; run as a script by test_transaction_checklist.

    python sender_process.py DSN BODY

Sends BODY to topic `orders`, and prints `executing` when the local transaction runs. The transaction never ends.
"""

import os
import sys
import threading
from typing import Any

from mqdb.common.received_message import ReceivedMessage
from mqdb_client import LocalTransactionState, Message, PreparedMessage, TransactionProducer


def execute(_message: PreparedMessage, _argument: Any) -> LocalTransactionState:
    os.write(1, b"executing\n")
    threading.Event().wait()
    return LocalTransactionState.COMMIT


def check(_message: ReceivedMessage) -> LocalTransactionState:
    os.write(1, b"asked\n")
    return LocalTransactionState.UNKNOWN


def main(dsn: str, body: str) -> None:
    producer = TransactionProducer("senders", dsn=dsn, execute_local_transaction=execute, check_local_transaction=check)
    with producer:
        producer.send_in_transaction(Message("orders", body))


if __name__ == "__main__":
    main(*sys.argv[1:])
