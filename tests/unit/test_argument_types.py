"""`Admin` refuses arguments of a wrong type before it sends anything to a broker."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mqdb.errors import ParameterInvalid
from mqdb_client import Admin, DeadLetterFilter
from mqdb_client.aio import AsyncAdmin

NOBODY = "postgresql://nobody@localhost/nothing"
TEXT = "a text of Unicode characters other than NUL"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda admin: admin.topics.delete(5), f"name = 5: must be {TEXT}"),
        (lambda admin: admin.topics.delete("orders", force=1), "force = 1: must be True or False"),
        (lambda admin: admin.messages.reading(5), f"topic = 5: must be {TEXT}"),
        (lambda admin: admin.messages.reading("t", "5"), "start = '5': must be a whole number of 64 bits, or None"),
        (
            lambda admin: admin.messages.latest("t", before=5),
            "before = 5: must be a list, each item a whole number of 64 bits, or None",
        ),
        (
            lambda admin: admin.messages.latest("t", selector="TagA"),
            "selector = 'TagA': must be a MessageSelector, or None",
        ),
        (lambda admin: admin.messages.find("t", key="a\0b"), rf"key = 'a\x00b': must be {TEXT}, or None"),
        (lambda admin: admin.groups.show("a\0b"), rf"name = 'a\x00b': must be {TEXT}"),
        (lambda admin: admin.dead_letters.count("orders"), "wanted = 'orders': must be a DeadLetterFilter"),
        (lambda _: DeadLetterFilter(group=5), f"group = 5: must be {TEXT}, or None"),  # type: ignore[arg-type]
        (lambda admin: admin.acl.set_secret("shop", b"1234567"), f"secret = '***': must be {TEXT}, or None"),
        (lambda admin: admin.acl.apply({"shop": 5}), f"wanted = {{'shop': 5}}: must be a dict of {TEXT}: a Rights"),
        (lambda admin: admin.doctor.checks("disk"), f"only = 'disk': must be a list, each item {TEXT}, or None"),
        (lambda admin: admin.on_each(5), "work = 5: must be a function"),
    ],
)
def test_the_error_names_the_argument_and_what_is_allowed(call: Callable[[Any], Any], sentence: str) -> None:
    with Admin(NOBODY) as admin, pytest.raises(ParameterInvalid) as raised:
        call(admin)

    assert str(raised.value) == sentence


def test_the_administrator_for_asyncio_refuses_the_same() -> None:
    with pytest.raises(ParameterInvalid, match="name = 5"):
        asyncio.run(AsyncAdmin(NOBODY).topics.delete(5))  # type: ignore[arg-type]


def test_wrong_numbers_of_arguments_stay_errors_of_python() -> None:
    with Admin(NOBODY) as admin, pytest.raises(TypeError, match="delete"):
        admin.topics.delete()  # type: ignore[call-arg]
