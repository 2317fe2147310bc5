"""Every number and duration in the settings has bounds, and the services work at both ends."""

from datetime import timedelta
from typing import Any, get_args

import annotated_types
import pytest
from pydantic import AfterValidator

from mqdb.common.delay_level import MAX_LEVELS
from mqdb.errors import SendGivenUp, SendOutcomeUnknown, SettingInvalid
from mqdb.server import Server
from mqdb.settings import Settings, load_settings
from mqdb.settings.values import DurationRange
from mqdb_client import Message, Producer
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until

SERVICES = {
    "dispatcher", "key indexer", "segment keeper", "client reaper", "delay deliverer", "timer deliverer",
    "timer keeper", "transaction checker", "cron sender",
}  # fmt: skip


def bounds(name: str) -> tuple[Any, Any] | None:
    """The minimum and maximum of a setting."""
    field = Settings.model_fields[name]
    metadata = list(field.metadata)
    for part in get_args(field.annotation):
        metadata += getattr(part, "__metadata__", ())
    for each in metadata:
        if isinstance(each, AfterValidator) and isinstance(each.func, DurationRange):
            return each.func.least, each.func.most
    least = [each.ge for each in metadata if isinstance(each, annotated_types.Ge)]
    most = [each.le for each in metadata if isinstance(each, annotated_types.Le)]
    return (least[0], most[0]) if least and most else None


def is_measured(name: str) -> bool:
    annotation = Settings.model_fields[name].annotation
    texts = f"{annotation} {get_args(annotation)}"
    return annotation is not bool and ("int" in texts.split("'") or annotation is int or "timedelta" in texts)


MEASURED = [name for name in Settings.model_fields if is_measured(name)]


def test_every_number_and_every_duration_has_bounds() -> None:
    assert len(MEASURED) >= 10
    assert [name for name in MEASURED if bounds(name) is None] == []


@pytest.mark.parametrize("name", MEASURED)
def test_a_value_beyond_the_bounds_is_refused_with_the_bounds(name: str) -> None:
    least, most = bounds(name) or (0, 0)
    one: Any = timedelta(microseconds=1) if isinstance(least, timedelta) else 1
    others: dict[str, Any] = {"disk_clean_forcibly_percent": 100} if name == "disk_max_used_space_percent" else {}
    others |= {"disk_max_used_space_percent": 1} if name == "disk_clean_forcibly_percent" else {}

    for value in (least, most):
        assert getattr(load_settings(**{**others, name: value}), name) == value
    for value in (least - one, most + one):
        with pytest.raises(SettingInvalid, match=rf"{name}.*(from 1?\d+m?s to 36500d|equal to [\d]+)"):
            load_settings(**{**others, name: value})


@pytest.mark.parametrize("value", ["9" * 400 + "d", "999999999d", "0s", "0.0000001ms", "\u0663s", "1e3s", "nan s"])
def test_no_text_of_a_duration_is_more_than_it_may_be(value: str) -> None:
    with pytest.raises(SettingInvalid, match=r"from 1s to 36500d|a number and its unit"):
        load_settings(file_reserved_time=value)


def test_only_so_many_delay_levels_are_taken() -> None:
    levels = load_settings(message_delay_level="1s " * MAX_LEVELS).delay_levels

    assert levels is not None
    assert len(levels.delays) == MAX_LEVELS == 100
    with pytest.raises(SettingInvalid, match="is one of 40,000 levels, the limit is 100"):
        load_settings(message_delay_level="1s " * 40_000)


@pytest.mark.parametrize("name", ["broker_name", "cluster_name"])
def test_a_name_is_only_so_long(name: str) -> None:
    with pytest.raises(SettingInvalid, match="has 128 characters, the limit is 127"):
        load_settings(**{name: "x" * 128})


@pytest.mark.parametrize(
    ("end", "others"),
    [
        (0, {"delete_when": "00", "message_delay_level": "1s"}),
        (1, {"delete_when": ";".join(map(str, range(24))), "message_delay_level": "1s" + " 36500d" * (MAX_LEVELS - 1)}),
    ],
    ids=["least", "most"],
)
def test_the_services_work_with_all_settings_at_one_end(
    database: Database, end: int, others: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    both = {name: bounds(name) for name in MEASURED if name not in ("port", "delete_when")}
    ends = {name: both_ends[end] for name, both_ends in both.items() if both_ends is not None}
    settings = load_settings(dsn=database.dsn, **ends, **others)
    joined = "mqdb.consume_queue JOIN mqdb.queue USING (queue_key) JOIN mqdb.topic USING (topic_id)"
    dispatched = f"SELECT count(*) FROM {joined} WHERE topic = 'orders'"
    with Server(settings) as server, Producer("senders", settings=load_settings(dsn=database.dsn)) as producer:
        wait_until(lambda: server.is_leader)
        producer.send(Message("orders", "at once"))
        producer.send(Message("orders", "later", delay_level=1))
        producer.send(Message("orders", "last", delay_level=MAX_LEVELS))

        # With one level the third has the same as the second, with all of them its time does not come.
        wait_until(lambda: database.rows(dispatched) >= [(3 if end == 0 else 2,)])
        wait_until(lambda: database.rows("SELECT count(*) FROM mqdb.segment") >= [(3,)])
        sessions = "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
        wait_until(lambda: {f"mqdb {name}" for name in SERVICES} <= {name for (name,) in database.rows(sessions)})

    assert "round of service" not in caplog.text


def test_a_send_has_its_time_at_both_ends(database: Database) -> None:
    least, most = bounds("send_message_timeout") or (0, 0)
    with Producer("patient", settings=load_settings(dsn=database.dsn, send_message_timeout=most)) as producer:
        assert producer.send(Message("orders", "x")).message_id
    with Producer("hasty", settings=load_settings(dsn=database.dsn, send_message_timeout=least)) as producer:
        try:
            assert producer.send(Message("orders", "x")).message_id
        except (SendGivenUp, SendOutcomeUnknown) as error:
            assert "0.001 s" in str(error)  # noqa: PT017 - either is right
