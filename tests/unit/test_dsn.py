"""Every DSN is read in one way only, and no message about a DSN reveals its password."""

import random
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.common.dsn import HIDDEN, BrokerDsn, hide_dsn, parse_brokers, redact, without_secrets
from mqdb.errors import MqdbError
from mqdb.settings import load_settings
from mqdb.store.engine import create_engine
from tests.fixtures.fuzz import fuzz_cases, fuzz_random

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
        ("postgresql+asyncpg://u:p@h/db", "write postgresql:// without +asyncpg"),
        (" postgres+psycopg2://h/db", "write postgresql:// without +psycopg2"),
        ("a=postgresql+asyncpg://h1/db;b=postgresql+asyncpg://h2/db", "without +asyncpg"),
        ("a=postgresql://h1/db; b=postgresql+pg8000://h2/db", "without +pg8000"),
        (f"postgresql+{SECRET}://h/db", "write postgresql://"),
        ("host=h dbname=db", "write postgresql://"),
        ("postgresql://u:p@w@h/db", "with @ : / "),
        ("postgresql://h1/db;postgresql://h2/db", "write postgresql://"),
        ("postgresql://h1/db;b=postgresql://h2/db", "every broker needs a name"),
        ("a=postgresql://h1/db;a=postgresql://h2/db", "named twice"),
        ("postgresql://h:0/db", "from 1 to 65535"),
        ("postgresql://h:65536/db", "from 1 to 65535"),
        ("postgresql://h:abc/db", "from 1 to 65535"),
        ("postgresql://u:p%zz@h/db", "%25"),
        ("postgresql://h/db?sslmode=require&no_such_option=1", "option 2 after the ? is unknown to libpq"),
        ("postgresql://h/db?ssl_mode=require", "did you mean sslmode?"),
        ("postgresql://h/db?sslmode", "option 1 after the ? is not name=value"),
        ("postgresql://u:p%00@h/db", "libpq cannot read it"),
        ("postgresql://u:p%ff@h/db", "UTF-8"),
        ("postgresql://u:p\x00w@h/db", "write postgresql://"),
        ("postgresql://u:p\udcffw@h/db", "write postgresql://"),
        (f"postgresql://h:{'1' * 5000}/db", "from 1 to 65535"),
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
        (f"postgresql://u%3A{SECRET}@h/db", "postgresql://u:***@h/db"),
        (f"postgresql://h/db?user=u&password={SECRET}&sslmode=require", "postgresql://h/db?user=u&password=***&sslmode=require"),
        (f"postgresql://h/db?%70assword={SECRET}&sslpassword={SECRET}", "postgresql://h/db?password=***&sslpassword=***"),
        (f"a=postgresql://h/db?service=u:{SECRET}@h", "a=***"),
        (f"a=postgresql://u:{SECRET}@h/db;b=postgresql://v:{SECRET}@i/db", "a=postgresql://u:***@h/db;b=postgresql://v:***@i/db"),
        ("postgresql://u@h:5432/db", "postgresql://u@h:5432/db"),
        ("postgresql://own%40er@h/d%2Fb%20%23", "postgresql://own%40er@h/d%2Fb%20%23"),
        ("postgresql://h1:1,h2:2/db", "postgresql://h1:1,h2:2/db"),
        ("postgresql://[::1]:5432/db", "postgresql://[::1]:5432/db"),
    ],
)  # fmt: skip
def test_redact_hides_passwords_and_leaves_the_rest(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql:/u:{SECRET}@h/d",
        f"postgresql//u:{SECRET}@h/d",
        f"u:{SECRET}@h/d",
        rf"password=a\ {SECRET}",
        rf"password='a\'{SECRET}'",
        f"host=h password='{SECRET} {SECRET}' user=u",
        f"postgresql://u:{SECRET}@{SECRET}/{SECRET}@h/db",
        f"postgresql://u@corp:{SECRET}@h/db",
        f"postgresql://u:{SECRET}/db",
        f"postgresql://u:@{SECRET}",
        f"postgresql://u:/{SECRET}",
        f"postgresql://u:1/a:{SECRET}",
        f"postgresql://u:5432/{SECRET}@h",
        f"postgresql://u:5432?{SECRET}=1@h",
        f"postgresql://h/db?password=a&{SECRET}",
        f"postgresql://h/db?password=a={SECRET}",
        f"postgresql://h/postgresql%3A%2F%2Fu%3A{SECRET}%40h",
        f"postgresql://u:pw;x=postgresql://{SECRET}@h/db",
        f"postgresql://u:{SECRET}%00@h/db",
        f"postgresql://u:{SECRET}%ff@h/db",
        f"postgresql+asyncpg://u:{SECRET}@h/db",
        f"postgresql+asyncpg://u:pw;{SECRET}=postgresql+pg8000://@h/db",
    ],
)
def test_a_text_that_cannot_be_read_is_not_shown_at_all(text: str) -> None:
    assert SECRET not in told_of(text)


def test_psql_gets_a_uri_without_any_secret() -> None:
    secrets = f"password={SECRET}&%70assword={SECRET}&sslpassword={SECRET}"

    assert without_secrets(f"postgresql://u:{SECRET}@h/db?{secrets}&sslmode=require") == (
        "postgresql://u@h/db?sslmode=require"
    )
    assert without_secrets("postgresql://h/db") == "postgresql://h/db"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql:/u:{SECRET}@h/d",
        f"/srv/u:{SECRET}@h",
        f"password={SECRET}",
        f"postgresql+asyncpg://u:pw/{SECRET}@h",
    ],
)
def test_a_dsn_in_the_wrong_place_is_hidden_there(text: str) -> None:
    assert hide_dsn(text) == HIDDEN


def test_a_directory_is_no_dsn() -> None:
    assert hide_dsn("/var/lib/mqdb") == "/var/lib/mqdb"


@pytest.mark.parametrize("setting", ["dsn", "pool_dsn", "home", "config", "broker_name", "message_delay_level", "dsm"])
@pytest.mark.parametrize("text", [f"postgresql://u:{SECRET}@h/d", f"postgresql:/u:{SECRET}@h/d", f"u:{SECRET}@h/d"])
def test_no_setting_tells_a_password_that_was_given_to_it(setting: str, text: str) -> None:
    try:
        told = str(load_settings(**{setting: text}))
    except MqdbError as refusal:
        told = all_that_is_told(refusal)

    assert SECRET not in told


def test_a_broker_prints_without_its_password() -> None:
    assert SECRET not in repr(BrokerDsn("broker-a", f"postgresql://u:{SECRET}@h/db"))


@given(before=st.text(max_size=8), after=st.text(max_size=8))
def test_no_password_is_told_however_it_is_written(before: str, after: str) -> None:
    assert SECRET not in told_of(f"postgresql://u:{before}{SECRET}{after}@h/db")


def test_no_dsn_tells_its_secret() -> None:
    chance = fuzz_random()
    for _ in range(fuzz_cases()):
        text = dsn_with_a_secret(chance)

        assert SECRET not in told_of(text), text


def dsn_with_a_secret(chance: random.Random) -> str:
    """A URI, or another text that people may write instead; SECRET is somewhere in its password."""
    noise = "".join(chance.choices("aZ1 :/?#@;=&%'\"\\[],.+-\t\n\x00é", k=chance.randrange(4)))
    password = noise + SECRET + "".join(chance.choices("a1:/?#@;=&%' \\", k=chance.randrange(4)))
    if chance.random() < 0.5:
        password = quote(password, safe="")
    key = chance.choice(["password", "%70assword", "PASSWORD", "sslpassword", "pass%77ord"])
    host = chance.choice(["h", "h:5432", "h1:1,h2:2", "[::1]", "", "@h"])
    scheme = chance.choice(
        ["postgresql://", "postgres://", "postgresql+psycopg://", "postgresql:/", "postgresql//", ""]
    )
    shapes = [
        f"{scheme}u:{password}@{host}/db",
        f"{scheme}u:{password}@{host}",
        # After `u:1/` it would be a database, and after `u:@` a host, which nobody could tell from a password.
        f"{scheme}u:{password.replace('@', '').replace('1', '')}",
        f"{scheme}:{password}@{host}/db?sslmode=require",
        f"{scheme}u:1/{password}@{host}/db",
        f"{scheme}u:1?{password}@{host}/db",
        f"{scheme}u@{host}/db?{key}={password}",
        f"{scheme}u@{host}/db?sslmode=require&{key}={password}&connect_timeout=1",
        f"host={host} user=u {key}={password}",
        f"host={host} {key}='{password}'",
    ]
    text = chance.choice(shapes)
    return chance.choice([text, f"a={text}", f"a=postgresql://x/y;b={text}", f"b={text};a=postgresql://x/y"])


def told_of(text: str) -> str:
    """All texts about a DSN: the printed form, and the errors when the DSN is refused."""
    told = redact(text)
    try:
        told += repr(parse_brokers(text, "broker-a"))
    except ValueError as refusal:
        told += all_that_is_told(refusal)
    try:
        told += repr(load_settings(dsn=text)) + str(load_settings(dsn=text).lines())
    except MqdbError as refusal:
        told += all_that_is_told(refusal)
    try:
        create_engine(text).dispose()
    except MqdbError as refusal:
        told += all_that_is_told(refusal)
    return told


def all_that_is_told(refusal: Exception) -> str:
    """The texts of a refusal, including the earlier errors that a traceback shows."""
    shown = refusal.__cause__ or (None if refusal.__suppress_context__ else refusal.__context__)
    return f"{refusal} {refusal!r} {shown} {shown!r} {refusal.args}"
