"""The line that opens a broker's database in psql."""

from pathlib import Path

from mqdb.cli.psql import psql_command

SECRET = "geheim"


def test_the_password_is_read_from_the_home_and_never_shown() -> None:
    dsn = f"postgresql://mqdb:{SECRET}@127.0.0.1:20001/mqdb?sslmode=disable&require_auth=scram-sha-256"

    command = psql_command(dsn, Path("/srv/my mq"))

    assert command == (
        """PGPASSWORD="$(cat '/srv/my mq/password')" PGREQUIREAUTH=scram-sha-256 """
        "psql 'postgresql://mqdb@127.0.0.1:20001/mqdb?sslmode=disable'"
    )


def test_of_a_server_of_ones_own_psql_finds_the_password_itself() -> None:
    assert psql_command(f"postgresql://mqdb:{SECRET}@h1,h2/mqdb") == "psql postgresql://mqdb@h1,h2/mqdb"
