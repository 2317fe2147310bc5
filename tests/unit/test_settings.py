"""Settings: the order of sources, the source of a value, and the errors for invalid values."""

import json
import os
import pickle
import random
import re
from datetime import timedelta
from pathlib import Path

import pytest

from mqdb.common.dsn import HIDDEN
from mqdb.errors import SettingInvalid
from mqdb.settings import Settings, load_settings, unknown_variables
from mqdb.settings.layers import default_home
from tests.fixtures.fuzz import fuzz_cases, fuzz_random

SECRET = "geheim"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory, and no MQDB_* variable but the one that points to the home."""
    for name in [*Settings.model_fields, "config"]:
        monkeypatch.delenv(f"MQDB_{name.upper()}", raising=False)
    monkeypatch.setenv("MQDB_HOME", str(tmp_path))
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# -- precedence and origin ----------------------------------------------------------------------


def test_nothing_set_means_the_embedded_broker_with_rocketmqs_defaults() -> None:
    settings = load_settings()

    assert settings.dsn is None
    assert settings.broker is None
    assert settings.port == 0
    assert settings.broker_name == "broker-a"
    assert settings.cluster_name == "DefaultCluster"
    assert settings.auto_create_topic_enable
    assert settings.default_topic_queue_nums == 4
    assert settings.send_message_timeout == timedelta(seconds=3)
    assert settings.file_reserved_time == timedelta(hours=72)
    assert settings.delete_when == (4,)
    assert settings.delay_levels is None
    assert settings.enable_property_filter
    assert not settings.filter_support_retry
    assert settings.origin("port") == "default"


def test_argument_wins_over_environment_wins_over_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(home / "mqdb.toml", 'port = 1\nbroker_name = "of-file"\ncluster_name = "of-file"')
    monkeypatch.setenv("MQDB_PORT", "2")
    monkeypatch.setenv("MQDB_BROKER_NAME", "of-environment")

    settings = load_settings(port=3)

    assert (settings.port, settings.origin("port")) == (3, "argument")
    assert (settings.broker_name, settings.origin("broker_name")) == (
        "of-environment",
        "environment MQDB_BROKER_NAME",
    )
    assert (settings.cluster_name, settings.origin("cluster_name")) == ("of-file", f"file {file}")


def test_an_argument_that_is_none_and_a_variable_that_is_empty_count_as_not_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MQDB_DSN", "")

    settings = load_settings(port=None)

    assert settings.dsn is None
    assert settings.origin("dsn") == settings.origin("port") == "default"


def test_every_setting_is_listed_with_its_value_and_origin() -> None:
    lines = {line.name: line for line in load_settings(dsn=f"postgresql://u:{SECRET}@h/db").lines()}

    assert list(lines) == list(Settings.model_fields)
    assert lines["dsn"][1:] == ("postgresql://u:***@h/db", "argument")
    assert lines["file_reserved_time"].value == "72h"
    assert lines["delete_when"].value == "04"
    assert lines["auto_create_topic_enable"].value == "true"
    assert lines["home"].origin == "environment MQDB_HOME"


def test_what_is_listed_can_be_set_again() -> None:
    settings = load_settings(
        file_reserved_time="30d", send_message_timeout="1500ms", delete_when="13;01", auto_create_topic_enable="false"
    )

    again = load_settings(**{line.name: line.value for line in settings.lines() if line.value})

    assert again.model_dump() == settings.model_dump()


def test_delay_levels_are_shown_in_their_shortest_form() -> None:
    assert load_settings(message_delay_level=" 60s  90s 24h").message_delay_level == "1m 90s 1d"


def test_a_delay_level_that_is_none_is_named() -> None:
    with pytest.raises(SettingInvalid, match=r"message_delay_level = '1s 5x' \(from argument\): '5x' is not a number"):
        load_settings(message_delay_level="1s 5x")


# -- the file -----------------------------------------------------------------------------------


def test_a_file_can_be_named_by_argument_or_by_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQDB_CONFIG", str(write(tmp_path / "one.toml", "port = 1")))

    assert load_settings().port == 1
    assert load_settings(config=write(tmp_path / "two.toml", "port = 2")).port == 2


def test_a_named_file_may_set_the_home_relative_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MQDB_HOME")
    file = write(tmp_path / "site.toml", 'home = "data"')

    assert load_settings(config=file).home == tmp_path / "data"


def test_a_file_found_in_the_home_cannot_move_the_home(home: Path) -> None:
    write(home / "mqdb.toml", 'home = "/elsewhere"')

    with pytest.raises(SettingInvalid, match="sets home, but was found there"):
        load_settings()


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingInvalid, match=r"absent\.toml' \(from argument\): there is no such file"):
        load_settings(config=tmp_path / "absent.toml")


def test_a_file_that_is_not_toml_says_where(home: Path) -> None:
    write(home / "mqdb.toml", "port = \n")

    with pytest.raises(SettingInvalid, match=r"is not TOML: .*line 1"):
        load_settings()


def test_an_unreadable_file_says_so(home: Path) -> None:
    (home / "mqdb.toml").mkdir()

    with pytest.raises(SettingInvalid, match="cannot be read: Is a directory"):
        load_settings()


def test_an_unknown_key_is_refused_with_its_file_and_the_nearest_name(home: Path) -> None:
    file = write(home / "mqdb.toml", f'dsm = "postgresql://u:{SECRET}@h/db"')

    with pytest.raises(SettingInvalid) as refusal:
        load_settings()

    assert str(refusal.value) == (
        f"setting dsm = 'postgresql://u:***@h/db' (from file {file}): there is no such setting; did you mean dsn?"
    )


def test_an_unknown_key_like_no_other_is_refused_with_all_names(home: Path) -> None:
    write(home / "mqdb.toml", "[zzzzzz]\nport = 1")

    with pytest.raises(SettingInvalid, match="the settings are dsn, pool_dsn, home"):
        load_settings()


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(SettingInvalid, match="did you mean port"):
        load_settings(prot=1)


# -- bad values ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("port", "65536", "less than or equal to 65535"),
        ("port", "many", "valid integer"),
        ("default_topic_queue_nums", "0", "greater than or equal to 1"),
        ("default_durability", "SYNC", "'ASYNC_FLUSH', 'SYNC_FLUSH' or 'SYNC_MASTER'"),
        ("auto_create_topic_enable", "perhaps", "valid boolean"),
        ("file_reserved_time", "72", "a number and its unit"),
        ("file_reserved_time", "0h", "from 1s to 36500d"),
        ("file_reserved_time", "99999999999d", "from 1s to 36500d"),
        ("send_message_timeout", "-3s", "a number and its unit"),
        ("delete_when", "24", "from 00 to 23"),
        ("delete_when", ";", "from 00 to 23"),
        ("disk_max_used_space_percent", "101", "less than or equal to 100"),
        ("disk_clean_forcibly_percent", "74", "less than disk_max_used_space_percent, which is 75"),
        ("broker_name", "broker a", "letters, digits"),
        ("cluster_name", "a;b", "letters, digits"),
        ("cluster_name", "room@eu", "'room@eu_REPLY_TOPIC': holds '@'"),
        ("dsn", "mysql://h/db", "write postgresql://"),
        ("pool_dsn", "postgresql://pooler/db", "set dsn as well"),
        ("http", "8090", "must be host:port, such as 127.0.0.1:8090"),
        ("http", "127.0.0.1:65536", "must be host:port"),
        ("http", "http://127.0.0.1:80", "must be host:port"),
        ("http", "::1:80", "must be host:port"),
        ("http", "0.0.0.0:8090", "set web_password, or use 127.0.0.1"),
        ("http", "mqdb.example:8090", "set web_password, or use 127.0.0.1"),
        ("http", "[::]:8090", "set web_password, or use 127.0.0.1"),
        ("web_user_header", "X-User: me", "should match pattern"),
        ("web_trusted_proxies", "10.0.0.1", "set both web_user_header and web_trusted_proxies, or neither"),
        ("web_trusted_proxies", "10.0.0.1/8", "has host bits set; write addresses or networks"),
        ("web_trusted_proxies", "proxy.example", "write addresses or networks, such as"),
        ("web_trusted_proxies", "0.0.0.0/0", "names no address, or all"),
        ("web_trusted_proxies", ",", "names no address, or all"),
        ("metrics_per_queue", ",", "names no topic"),
        ("metrics_per_queue", "orders, a b!", "'b!'"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_source_and_limit(
    name: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"MQDB_{name.upper()}", value)

    with pytest.raises(SettingInvalid) as refusal:
        load_settings()

    assert refusal.value.name == name
    assert refusal.value.value == ("***" if name == "dsn" else value)
    assert refusal.value.source == f"environment MQDB_{name.upper()}"
    assert reason in str(refusal.value)


def test_topics_whose_queues_are_measured_are_a_list() -> None:
    assert load_settings().metrics_topics == ()
    assert load_settings(metrics_per_queue="orders,  payments orders").metrics_topics == ("orders", "payments")


def test_http_may_be_served_on_loopback_or_for_who_knows_a_password() -> None:
    for text, address in {
        " 127.0.0.1:8090": ("127.0.0.1", 8090),
        "localhost:0": ("localhost", 0),
        "[::1]:80": ("::1", 80),
    }.items():
        assert load_settings(http=text).http_address == address
        assert load_settings(http=text).http == text.strip()
    proxies = {"web_user_header": "X-User", "web_trusted_proxies": "::1 10.0.0.0/24,10.1.0.7"}
    proxied = load_settings(http="0.0.0.0:8090", **proxies)
    assert proxied.web_trusted_proxies == "::1/128, 10.0.0.0/24, 10.1.0.7/32"
    for given in ({"web_password": "x"}, {"web_viewer_password": "x"}, {}):
        served = load_settings(http="0.0.0.0:8090", **given) if given else proxied
        assert served.http_address == ("0.0.0.0", 8090)
    with pytest.raises(SettingInvalid, match=r"set both .*, or neither"):
        load_settings(web_user_header="X-User")
    with pytest.raises(SettingInvalid, match="the same as web_password"):
        load_settings(web_password="x", web_viewer_password="x")
    assert load_settings().http_address is None


@pytest.mark.parametrize("hour", [(24,), (-1,)])
def test_hours_given_as_numbers_are_checked_too(hour: tuple[int, ...]) -> None:
    with pytest.raises(SettingInvalid, match="delete_when"):
        load_settings(delete_when=hour)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("72h", timedelta(hours=72)),
        ("3d", timedelta(days=3)),
        ("45s", timedelta(seconds=45)),
        ("10 m", timedelta(minutes=10)),
        ("1.5s", timedelta(milliseconds=1500)),
        ("500ms", timedelta(milliseconds=500)),
    ],
)
def test_a_duration_is_a_number_and_its_unit(text: str, duration: timedelta) -> None:
    assert load_settings(send_message_timeout=text).send_message_timeout == duration


def test_delete_when_takes_several_hours_as_rocketmq_writes_them() -> None:
    assert load_settings(delete_when="13; 04;4").delete_when == (4, 13)


# -- brokers ------------------------------------------------------------------------------------


def test_a_lone_dsn_is_the_broker_of_the_broker_name() -> None:
    settings = load_settings(dsn="postgresql://h/db", broker_name="broker-z")

    assert settings.broker == ("broker-z", "postgresql://h/db")


def test_several_brokers_are_read_and_refused_where_one_is_used() -> None:
    settings = load_settings(dsn="broker-a=postgresql://h1/db;broker-b=postgresql://h2/db")

    assert [broker.name for broker in settings.brokers] == ["broker-a", "broker-b"]
    with pytest.raises(SettingInvalid, match="lists several brokers, broker-a, broker-b"):
        _ = settings.broker


def test_a_broker_name_that_contradicts_the_dsn_is_refused() -> None:
    with pytest.raises(SettingInvalid, match="the dsn names the broker 'broker-b'"):
        load_settings(dsn="broker-b=postgresql://h/db", broker_name="broker-c")


# -- secrets ------------------------------------------------------------------------------------


def test_no_way_of_printing_settings_tells_a_password() -> None:
    dsn = f"postgresql://u:{SECRET}@h/db"

    settings = load_settings(dsn=dsn, pool_dsn=dsn, web_password=SECRET)

    assert settings.web_password == SECRET
    assert settings.shown("web_password") == "***"
    assert SECRET not in f"{settings} {settings!r} {settings.lines()} {settings.brokers}"


@pytest.mark.parametrize(
    "text",
    [
        f"dsn = 'postgresql://u:{SECRET}@h:port/db'",
        f"web_pasword = '{SECRET}'",
        f"password = '{SECRET}'",
        f"web_password = ['{SECRET}']",
        "web_password = 987654321",
    ],
)
def test_no_refusal_tells_a_password(home: Path, text: str) -> None:
    write(home / "mqdb.toml", text)

    with pytest.raises(SettingInvalid) as refusal:
        load_settings()

    assert "987654321" not in str(refusal.value)
    assert SECRET not in f"{refusal.value} {refusal.value!r} {refusal.value.__cause__} {refusal.value.args}"


# -- any text -----------------------------------------------------------------------------------


def test_any_text_is_a_setting_or_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any text is either accepted by each source of settings or refused.

    An accepted value can be printed, and the output is accepted again.
    """
    chance = fuzz_random()
    longest = 0
    for _ in range(fuzz_cases()):
        name, text = chance.choice([*Settings.model_fields, "prot", "DSN", "x y"]), any_value(chance)
        with monkeypatch.context() as environment:
            try:
                match chance.randrange(3):
                    case 0:
                        settings = load_settings(**{name: text})
                    case 1:
                        environment.setenv(f"MQDB_{name.upper()}", text.replace("\0", ""))
                        settings = load_settings()
                    case _:
                        written = chance.choice([json.dumps(text), text])
                        write(home / "mqdb.toml", f"{json.dumps(name)} = {written}\n")
                        settings = load_settings()
                assert len(settings.lines()) == len(Settings.model_fields)
                values = {line.name: line.value for line in settings.lines() if line.value}
                # Any text that looks like a DSN with a password is hidden.
                hidden = HIDDEN_ONES | {name for name, value in values.items() if HIDDEN in value}
                taken_again = load_settings(**{name: value for name, value in values.items() if name not in hidden})
                assert taken_again.model_dump(exclude=hidden) == settings.model_dump(exclude=hidden)
            except SettingInvalid as refusal:
                longest = max(longest, len(str(refusal)))
        write(home / "mqdb.toml", "")
    assert 0 < longest < 4_200


#: What may be shown as ***.
HIDDEN_ONES = {"dsn", "pool_dsn", "home", "actor", "web_password", "web_viewer_password"}


def any_value(chance: random.Random) -> str:
    """A typical value of a setting, sometimes corrupted."""
    texts = [
        "72h",
        "500ms",
        "0s",
        "1e9d",
        "9" * 400 + "d",
        "-1",
        "1",
        "65535",
        "9" * 5_000,
        "true",
        "maybe",
        "04;13",
        ";",
        "1s 5s",
        "1s " * 500,
        "0" * 5_000 + "1s",
        "broker-a",
        "a" * 200,
        "postgresql://u:p@h/db",
        "u:p@h",
        "~nosuchuser",
        "/srv/mqdb",
        "\u0663",
        "é",
        "[1]",
        "{}",
        "[" * 5_000,
        "'",
        '"',
        "",
        " ",
        "\n",
        "nan",
        "inf",
        "2026-07-14",
    ]
    text = chance.choice(texts)
    return text if chance.random() < 0.7 else text + chance.choice(["\0", "x", " ", "%", "\x1b"])


# -- the home directory -------------------------------------------------------------------------


def test_root_has_its_home_under_var_lib_and_others_in_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_home() == Path("/var/lib/mqdb")

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", "/home/ann/.local/share")
    assert default_home() == Path("/home/ann/.local/share/mqdb")


def test_the_home_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert load_settings(home="here").home == tmp_path / "here"


def test_settings_travel_to_worker_processes_with_their_origins() -> None:
    settings = pickle.loads(pickle.dumps(load_settings(port=7)))

    assert (settings.port, settings.origin("port")) == (7, "argument")


# -- blanks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["argument", "environment", "file"])
def test_blanks_around_a_value_are_left_out(source: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default of each setting is accepted with blanks around it."""
    written = {line.name: line.value for line in load_settings().lines() if line.value and line.name != "home"}
    written |= {"web_password": "secret", "http": "127.0.0.1:8090", "remoting": "127.0.0.1:9876", "actor": "me"}
    padded = {name: f" {value}\t" for name, value in written.items()}
    if source == "environment":
        for name, value in padded.items():
            monkeypatch.setenv(f"MQDB_{name.upper()}", value)
    if source == "file":
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in padded.items())
        write(home / "mqdb.toml", lines)

    settings = load_settings(**(padded if source == "argument" else {}))

    password = written.pop("web_password")
    assert {name: settings.shown(name) for name in written} == written
    assert settings.web_password == password


def test_blanks_around_the_home_and_the_file_are_left_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(home / "other.toml", "port = 5\n")
    monkeypatch.setenv("MQDB_HOME", f" {home} ")
    monkeypatch.setenv("MQDB_CONFIG", f"{file} ")

    settings = load_settings()

    assert (settings.home, settings.port) == (home, 5)


def test_a_blank_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQDB_PORT", "  ")

    assert load_settings().origin("port") == "default"


# -- variables that nothing reads ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("MQDB_FILE_RESERVED_TIEM", "MQDB_FILE_RESERVED_TIME"),
        ("MQDB_DNS", "MQDB_DSN"),
        ("mqdb_dsn", "MQDB_DSN"),
        ("MQDB_PGBIN", "MQDB_PG_BIN"),
        ("MQDB_COLOUR_OF_THE_BIKE_SHED", None),
    ],
)
def test_a_variable_that_nothing_reads_is_named_with_its_nearest(name: str, near: str | None) -> None:
    assert unknown_variables({name: SECRET, "MQDB_DSN": "x", "PATH": "/bin"}) == [(name, near)]


def test_an_empty_variable_counts_as_unset() -> None:
    assert unknown_variables({"MQDB_DNS": ""}) == []


def test_all_variables_that_are_read_are_known() -> None:
    root = Path(__file__).parents[2]
    sources = [path for folder in ("mqdb", "client", "tests", "benchmarks") for path in root.glob(f"{folder}/**/*.py")]
    texts = [path.read_text(encoding="utf-8") for path in [*sources, root / "do.py"] if path != Path(__file__)]
    deployed = [*root.glob("deploy/*/*"), root / "docker-compose.yml", root / "Dockerfile"]
    names = {name for text in texts for name in re.findall(r"""environ\S*[\[(]\s*["'](MQDB_\w+)""", text)}
    names |= {name for path in deployed for name in re.findall(r"\b(MQDB_[A-Z_]+)\b", path.read_text("utf-8"))}

    assert names >= {"MQDB_PG_BIN", "MQDB_FUZZ_SEED", "MQDB_PASSWORD", "MQDB_REQUIRE_SPARK"}
    assert unknown_variables(dict.fromkeys(names, "1")) == []
