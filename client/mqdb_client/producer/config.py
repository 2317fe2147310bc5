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
    """The options of a producer, checked on construction. Raises NameInvalid, ParameterInvalid."""

    retry_times_when_send_failed: Annotated[
        int, whole(0, 100), "The maximum number of retries of a failed sync send, within its timeout."
    ] = 2
    retry_times_when_send_async_failed: Annotated[
        int, whole(0, 100), "The maximum number of retries of an async send whose broker cannot be reached."
    ] = 2
    retry_another_broker_when_not_store_ok: Annotated[
        bool,
        FLAG,
        "Also send a message to another broker if it was stored with less durability than requested. The message is "
        "then stored twice.",
    ] = False
    send_latency_fault_enable: Annotated[bool, FLAG, "Avoid brokers that were slow or failed, for up to 30 s."] = False
    durability: Annotated[
        Durability | None,
        or_none(one_of(Durability)),
        "The durability that a send waits for. None means the default of each broker (its setting "
        "`default_durability`).",
    ] = None
    compression: Annotated[
        Compression | None,
        or_none(one_of(Compression)),
        "The compression of bodies. None sends bodies uncompressed. Messages of a batch are never compressed.",
    ] = None
    compress_message_body_threshold_bytes: Annotated[
        int, whole(1, 2**31 - 1), "Bodies shorter than this are not compressed."
    ] = 4_096
    max_message_size_bytes: Annotated[int, whole(1, MAX_BODY_BYTES), "The size limit of bodies before compression."] = (
        MAX_BODY_BYTES
    )
    back_pressure_for_async_send_num: Annotated[
        int, whole(1, 10_000_000), "The maximum number of async and oneway sends under way. Further sends wait."
    ] = 10_000
    back_pressure_for_async_send_size_bytes: Annotated[
        int, whole(1, 2**40), "The maximum total body size of async and oneway sends under way. Further sends wait."
    ] = 100 * 1024 * 1024
    clock: Annotated[Clock, CLOCK, "The clock for message times."] = _SYSTEM_CLOCK

    def __post_init__(self) -> None:
        check_group_name(self.group, DEFAULT_PRODUCER)
        check_options(self)
