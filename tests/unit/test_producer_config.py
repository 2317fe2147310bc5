"""Producer options are checked when the producer is created: each must have the right type and be within its limits."""

import inspect
from types import NoneType

import pytest

from mqdb.common.message import MAX_BODY_BYTES
from mqdb.errors import ParameterInvalid
from mqdb_client import Durability, Producer

#: Of each number, the least and the most.
RANGES = {
    "retry_times_when_send_failed": (0, 100),
    "retry_times_when_send_async_failed": (0, 100),
    "compress_message_body_threshold_bytes": (1, 2**31 - 1),
    "max_message_size_bytes": (1, MAX_BODY_BYTES),
    "back_pressure_for_async_send_num": (1, 10_000_000),
    "back_pressure_for_async_send_size_bytes": (1, 2**40),
}

#: The options that a text, None or a truth value is fit for.
MEANT: dict[str, tuple[type, ...]] = {
    "instance_name": (str,),
    "compression": (NoneType,),
    "durability": (NoneType,),
    "retry_another_broker_when_not_store_ok": (bool,),
    "send_latency_fault_enable": (bool,),
}


def producer(**options: object) -> Producer:
    return Producer("senders", "postgresql://mqdb@127.0.0.1:1/nowhere", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", RANGES)
def test_numbers_have_limits(name: str) -> None:
    lowest, highest = RANGES[name]
    for value in (lowest, highest):
        producer(**{name: value})

    for wrong in (lowest - 1, highest + 1):
        with pytest.raises(ParameterInvalid) as caught:
            producer(**{name: wrong})
        assert str(caught.value) == f"{name} = {wrong!r}: must be a whole number from {lowest:,} to {highest:,}"


@pytest.mark.parametrize("name", sorted({*inspect.signature(Producer).parameters} - {"group", "dsn", "settings"}))
def test_no_option_takes_what_is_of_another_type(name: str) -> None:
    for wrong in ("no", None, 1.5, True, object(), b"x"):
        if not isinstance(wrong, MEANT.get(name, ())):
            with pytest.raises(ParameterInvalid) as caught:
                producer(**{name: wrong})
            assert (caught.value.name, caught.value.value) == (name, wrong)


def test_a_durability_is_a_member_of_the_enum_and_not_its_name() -> None:
    for member in Durability:
        producer(durability=member)

    with pytest.raises(ParameterInvalid, match=r"must be Durability\.ASYNC_FLUSH, Durability\.SYNC_FLUSH or"):
        producer(durability="ASYNC_FLUSH")
