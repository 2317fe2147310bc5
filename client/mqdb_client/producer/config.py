"""What a producer can be told, with RocketMQ's names, defaults and ranges.

Source: DefaultMQProducer, DefaultMQProducerImpl.checkConfig.
"""

from dataclasses import dataclass

from mqdb.compression import Compression
from mqdb.dsn import is_broker_name
from mqdb.errors import ParameterInvalid
from mqdb.group import DEFAULT_PRODUCER, check_group_name
from mqdb.message import MAX_BODY_BYTES
from mqdb_client.durability import Durability
from mqdb_client.fault_tolerance import LatencyFaultTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Checked when it is made. Raises NameInvalid, ParameterInvalid."""

    group: str
    #: Producers and consumers of a process that have the same one share connections; DEFAULT is this process's own.
    instance_name: str
    #: Further tries of a sync send that failed, all within its timeout.
    retry_times_when_send_failed: int
    #: Further tries of an async send whose broker could not be reached.
    retry_times_when_send_async_failed: int
    #: Whether a message that is stored, but not with the durability that was asked for, is sent to another broker as
    #: well: it is stored twice then.
    retry_another_broker_when_not_store_ok: bool
    #: Whether brokers that were slow, or failed, are left alone for a while, and for how long.
    send_latency_fault_enable: bool
    latency_fault_table: LatencyFaultTable
    #: What a send waits for.
    durability: Durability
    #: How bodies are compressed; None leaves them as they are. Messages of a batch never are.
    compression: Compression | None
    #: In bytes; shorter bodies are not compressed.
    compress_message_body_threshold: int
    #: In bytes of the body before it is compressed.
    max_message_size: int
    #: Messages, and bytes of their bodies, of async and oneway sends that have not ended. One more has to wait.
    back_pressure_for_async_send_num: int
    back_pressure_for_async_send_size: int

    def __post_init__(self) -> None:
        check_group_name(self.group, DEFAULT_PRODUCER)
        if not is_broker_name(self.instance_name):
            reason = "use letters, digits, and _ . @ - after the first"
            raise ParameterInvalid("instance_name", self.instance_name, reason)
        self._check_range("retry_times_when_send_failed", 0, 100)
        self._check_range("retry_times_when_send_async_failed", 0, 100)
        self._check_range("compress_message_body_threshold", 1, 2**31 - 1)
        self._check_range("max_message_size", 1, MAX_BODY_BYTES)
        self._check_range("back_pressure_for_async_send_num", 1, 10_000_000)
        self._check_range("back_pressure_for_async_send_size", 1, 2**40)
        self._check_kind("latency_fault_table", LatencyFaultTable)
        self._check_kind("durability", Durability)
        self._check_kind("compression", Compression, None)

    def _check_range(self, name: str, lowest: int, highest: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or not lowest <= value <= highest:
            raise ParameterInvalid(name, value, f"must be a whole number from {lowest:,} to {highest:,}")

    def _check_kind(self, name: str, kind: type, *others: object) -> None:
        value = getattr(self, name)
        if not isinstance(value, kind) and value not in others:
            raise ParameterInvalid(name, value, f"must be a {kind.__name__}")
