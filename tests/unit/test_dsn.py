"""DSNs are read one way only, and no message about them tells a password."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.dsn import BrokerDsn, parse_brokers, redact

SECRET = "geheim"


@pytest.mark.parametrize(
    ("text", "dsn"),
    [
        ("postgresql://u:p@h:5432/db", "postgresql://u:p@h:5432/db"),
        ("postgres://h/db", "postgresql://h/db"),
        ("postgresql+psycopg://h/db", "postgresql://h/db"),
        ("postgresql://", "postgresql://"),
        ("postgresql://[::1]:5433/db", "postgresql://[::1]:5433/db"),
        ("postgresql:///db?host=/run/postgresql", "postgresql:///db?host=/run/postgresql"),
        (
            "postgresql://a:1,b:2/db?target_session_attrs=read-write",
            "postgresql://a:1,b:2/db?target_session_attrs=read-write",
        ),
        ("postgresql://u:semi;colon%40@h/db", "postgresql://u:semi;colon%40@h/db"),
    ],
)
def test_a_lone_uri_is_one_broker_of_the_default_name(text: str, dsn: str) -> None:
    assert parse_brokers(text, "broker-a") == (BrokerDsn("broker-a", dsn),)


def test_a_list_names_its_brokers_and_keeps_their_order() -> None:
    text = "broker-b=postgresql://u:p@h1/db; broker-a=postgres://h2:5433/db;"

    brokers = parse_brokers(text, "unused")

    assert brokers == (
        BrokerDsn("broker-b", "postgresql://u:p@h1/db"),
        BrokerDsn("broker-a", "postgresql://h2:5433/db"),
    )


def test_a_lone_dsn_may_carry_its_name() -> None:
    assert parse_brokers("broker-z=postgresql://h/db", "broker-a")[0].name == "broker-z"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "write postgresql://"),
        ("mysql://h/db", "write postgresql://"),
        ("host=h dbname=db", "write postgresql://"),
        ("postgresql://u:p@w@h/db", "with @ : / "),
        ("postgresql://h1/db;postgresql://h2/db", "write postgresql://"),
        ("postgresql://h1/db;b=postgresql://h2/db", "every broker has a name"),
        ("a=postgresql://h1/db;a=postgresql://h2/db", "named twice"),
        ("postgresql://h:0/db", "from 1 to 65535"),
        ("postgresql://h:65536/db", "from 1 to 65535"),
        ("postgresql://h:abc/db", "from 1 to 65535"),
        ("postgresql://u:p%zz@h/db", "%25"),
        ("postgresql://h/db?no_such_option=1", "no_such_option"),
    ],
)
def test_what_is_no_dsn_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as refusal:
        parse_brokers(text, "broker-a")

    assert reason in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"postgresql://u:{SECRET}@h:5432/db", "postgresql://u:***@h:5432/db"),
        (f"postgresql://u:{SECRET}@{SECRET}/{SECRET}@h/db", "postgresql://u:***@h/db"),
        (f"postgresql://u@corp:{SECRET}@h/db", "postgresql://u@corp:***@h/db"),
        (f"postgresql://u:{SECRET}/db", "postgresql://u:***/db"),
        (f"postgresql://h/db?user=u&password={SECRET}&sslmode=require", "postgresql://h/db?user=u&password=***&sslmode=require"),
        (f"host=h password='{SECRET} {SECRET}' user=u", "host=h password=*** user=u"),
        (f"a=postgresql://u:{SECRET}@h/db;b=postgresql://v:{SECRET}@i/db", "a=postgresql://u:***@h/db;b=postgresql://v:***@i/db"),
        ("postgresql://u@h:5432/db", "postgresql://u@h:5432/db"),
        ("postgresql://h1:1,h2:2/db", "postgresql://h1:1,h2:2/db"),
        ("postgresql://[::1]:5432/db", "postgresql://[::1]:5432/db"),
    ],
)  # fmt: skip
def test_redact_hides_passwords_and_leaves_the_rest(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_a_broker_prints_without_its_password() -> None:
    assert SECRET not in repr(BrokerDsn("broker-a", f"postgresql://u:{SECRET}@h/db"))


@given(before=st.text(max_size=8), after=st.text(max_size=8))
def test_no_password_is_told_however_it_is_written(before: str, after: str) -> None:
    text = f"postgresql://u:{before}{SECRET}{after}@h/db"

    told = redact(text)
    try:
        parse_brokers(text, "broker-a")
    except ValueError as refusal:
        told += str(refusal)

    assert SECRET not in told
