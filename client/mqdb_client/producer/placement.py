"""Placement: where a record goes that may not go to its queue at once.

RocketMQ's broker puts such a message into a system topic, with the real one in its properties. Here the append does
that: a record that has a `wait` is stored in the system queue for it, with REAL_TOPIC and REAL_QID, as long as its
real queue is there (`mqdb.store.commit_log`). So the record keeps the key of its real queue on the way.

`mqdb.broker.send.record` gives a message the wait that its own properties ask for. A placement changes the record of a
delivery where more than the message decides. RocketMQ: HookUtils, TransactionalMessageBridge.parseHalfMessageInner.
"""

from collections.abc import Callable
from typing import TypeAlias

from mqdb.message import MessageQueue
from mqdb.store.commit_log import Record
from mqdb_client.producer.broker_link import BrokerLink

#: Given the record of a message, the queue that was chosen and the way to its broker: the record to store. It is called
#: in the thread that sends, once for each try.
Placement: TypeAlias = Callable[[Record, MessageQueue, BrokerLink], Record]
