"""A DSN is converted to a JDBC URL for the same server and user, or an error says why this is impossible."""

import pytest

from mqdb.pipeline.errors import OptionInvalid
from mqdb.pipeline.read.jdbc_url import jdbc_target


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSSLMODE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("dsn", "url"),
    [
        ("postgresql://u@h:5433/db", "jdbc:postgresql://h:5433/db"),
        ("postgresql://u@h/db", "jdbc:postgresql://h:5432/db"),
        ("postgresql://u@[::1]/db", "jdbc:postgresql://[::1]:5432/db"),
        ("postgresql://u@a:1,b:2/db", "jdbc:postgresql://a:1,b:2/db"),
        ("postgresql://u@a,b/db?port=7", "jdbc:postgresql://a:7,b:7/db"),
        ("postgresql://u@h/a%2Fb%20%3F", "jdbc:postgresql://h:5432/a%2Fb%20%3F"),
        ("postgresql://u@h", "jdbc:postgresql://h:5432/u"),
        ("postgresql://u@h/db?hostaddr=127.0.0.1", "jdbc:postgresql://127.0.0.1:5432/db"),
        ("postgresql+psycopg://u@h/db", "jdbc:postgresql://h:5432/db"),
    ],
)
def test_the_url_leads_where_the_dsn_leads(dsn: str, url: str) -> None:
    assert jdbc_target(dsn).url == url


def test_the_password_is_a_property_and_no_part_of_the_url() -> None:
    target = jdbc_target("postgresql://u%40x:p%40ss%3B%2F@h/db")

    assert target.properties["user"] == "u@x"
    assert target.properties["password"] == "p@ss;/"
    assert "p@ss" not in target.url + repr(target)


def test_parameters_are_said_in_the_words_of_the_jdbc_driver() -> None:
    ssl, server = "sslmode=verify-full&sslrootcert=/ca.pem", "target_session_attrs=read-write&connect_timeout=3"
    rest = "application_name=x&keepalives_idle=5&options=-c%20jit%3Doff"

    properties = jdbc_target(f"postgresql://u@h/db?{ssl}&{server}&{rest}").properties

    assert properties == {
        "user": "u",
        "sslmode": "verify-full",
        "sslrootcert": "/ca.pem",
        "connectTimeout": "3",
        "ApplicationName": "x",
        "targetServerType": "primary",
        "options": "-c jit=off",
        "tcpKeepAlive": "true",
    }


def test_the_environment_fills_in_what_the_dsn_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "from-environment")
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("PGPORT", "6000")

    target = jdbc_target("postgresql://u@/db?port=7000")

    assert target.url == "jdbc:postgresql://from-environment:7000/db"
    assert target.properties["password"] == "secret"


@pytest.mark.parametrize(
    ("dsn", "reason"),
    [
        ("postgresql:///db?host=/run/postgresql", "the Unix socket '/run/postgresql', but JDBC supports only TCP"),
        ("postgresql:///db", "it names no host"),
        ("postgresql://u@a,/db", "it names no host"),
        ("postgresql://u@a:1,b:2,c:3/db?port=1,2", "3 hosts and 2 ports"),
        ("postgresql://u@h/db?sslcrl=/crl.pem", "sslcrl=/crl.pem has no meaning for JDBC"),
        ("postgresql://u@h/db?service=prod", "service=prod has no meaning for JDBC"),
        ("postgresql://u@h/db?require_auth=scram-sha-256", "require_auth=scram-sha-256 has no meaning for JDBC"),
        ("a=postgresql://u:geheim@h/db;b=postgresql://u:geheim@h2/db", "names several brokers"),
        ("mysql://u:geheim@h/db", "write postgresql://"),
    ],
)
def test_what_jdbc_cannot_do_is_an_error_that_tells_no_password(dsn: str, reason: str) -> None:
    with pytest.raises(OptionInvalid) as caught:
        jdbc_target(dsn)

    assert reason in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_an_embedded_server_can_be_read() -> None:
    target = jdbc_target("postgresql://mqdb:secret@127.0.0.1:20001/mqdb?sslmode=disable&require_auth=scram-sha-256")

    assert target.url == "jdbc:postgresql://127.0.0.1:20001/mqdb"
    assert target.properties["sslmode"] == "disable"
