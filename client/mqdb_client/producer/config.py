"""The options of a producer, with RocketMQ's names, defaults and ranges.

Source: DefaultMQProducer, DefaultMQProducerImpl.checkConfig.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from mqdb.common.clock import Clock, SystemClock
from mqdb.common.compression import Compression
from mqdb.common.durability import Durability
from mqdb.common.group import DEFAULT_PRODUCER, check_group_name
from mqdb.common.message import MAX_BODY_BYTES
from mqdb_client.client_config import ClientConfig
from mqdb_client.option_rules import CLOCK, FLAG, check_options, one_of, or_none, whole

_SYSTEM_CLOCK: Final = SystemClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """The options. They are checked when the object is made. Raises NameInvalid, ParameterInvalid."""

    #: Further tries of a sync send that failed, all within its timeout.
    retry_times_when_send_failed: Annotated[int, whole(0, 100)] = 2
    #: Further tries of an async send whose broker could not be reached.
    retry_times_when_send_async_failed: Annotated[int, whole(0, 100)] = 2
    #: Whether a message that is stored, but not with the durability that was asked for, is sent to another broker as
    #: well: it is stored twice then.
    retry_another_broker_when_not_store_ok: Annotated[bool, FLAG] = False
    #: Whether brokers that were slow, or failed, are left alone for up to 30 s.
    send_latency_fault_enable: Annotated[bool, FLAG] = False
    #: What a send waits for; None, the default of each broker (its setting `default_durability`).
    durability: Annotated[Durability | None, or_none(one_of(Durability))] = None
    #: How bodies are compressed; None leaves them as they are. Messages of a batch never are.
    compression: Annotated[Compression | None, or_none(one_of(Compression))] = None
    #: Shorter bodies are not compressed.
    compress_message_body_threshold_bytes: Annotated[int, whole(1, 2**31 - 1)] = 4_096
    #: Of the body before it is compressed.
    max_message_size_bytes: Annotated[int, whole(1, MAX_BODY_BYTES)] = MAX_BODY_BYTES
    #: Messages of async and oneway sends that have not ended. One more has to wait.
    back_pressure_for_async_send_num: Annotated[int, whole(1, 10_000_000)] = 10_000
    #: Bytes of their bodies.
    back_pressure_for_async_send_size_bytes: Annotated[int, whole(1, 2**40)] = 100 * 1024 * 1024
    #: Where the times of messages come from.
    clock: Annotated[Clock, CLOCK] = _SYSTEM_CLOCK

    def __post_init__(self) -> None:
        check_group_name(self.group, DEFAULT_PRODUCER)
        check_options(self)
