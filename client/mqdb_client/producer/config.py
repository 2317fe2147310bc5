"""What a producer can be told, with RocketMQ's names, defaults and ranges.

Source: DefaultMQProducer, DefaultMQProducerImpl.checkConfig.
"""

from dataclasses import dataclass
from typing import Annotated

from mqdb.compression import Compression
from mqdb.group import DEFAULT_PRODUCER, check_group_name
from mqdb.message import MAX_BODY_BYTES
from mqdb_client.options import FLAG, INSTANCE_NAME, check_options, one_of, or_none, whole
from mqdb_client.producer.durability import Durability
from mqdb_client.producer.fault_tolerance import LatencyFaultTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Checked when it is made. Raises NameInvalid, ParameterInvalid."""

    group: str
    #: Producers and consumers of a process that have the same one share connections; DEFAULT is this process's own.
    instance_name: Annotated[str, INSTANCE_NAME]
    #: Further tries of a sync send that failed, all within its timeout.
    retry_times_when_send_failed: Annotated[int, whole(0, 100)]
    #: Further tries of an async send whose broker could not be reached.
    retry_times_when_send_async_failed: Annotated[int, whole(0, 100)]
    #: Whether a message that is stored, but not with the durability that was asked for, is sent to another broker as
    #: well: it is stored twice then.
    retry_another_broker_when_not_store_ok: Annotated[bool, FLAG]
    #: Whether brokers that were slow, or failed, are left alone for a while, and for how long.
    send_latency_fault_enable: Annotated[bool, FLAG]
    latency_fault_table: Annotated[LatencyFaultTable, one_of(LatencyFaultTable)]
    #: What a send waits for.
    durability: Annotated[Durability, one_of(Durability)]
    #: How bodies are compressed; None leaves them as they are. Messages of a batch never are.
    compression: Annotated[Compression | None, or_none(one_of(Compression))]
    #: In bytes; shorter bodies are not compressed.
    compress_message_body_threshold: Annotated[int, whole(1, 2**31 - 1)]
    #: In bytes of the body before it is compressed.
    max_message_size: Annotated[int, whole(1, MAX_BODY_BYTES)]
    #: Messages, and bytes of their bodies, of async and oneway sends that have not ended. One more has to wait.
    back_pressure_for_async_send_num: Annotated[int, whole(1, 10_000_000)]
    back_pressure_for_async_send_size: Annotated[int, whole(1, 2**40)]

    def __post_init__(self) -> None:
        check_group_name(self.group, DEFAULT_PRODUCER)
        check_options(self)
