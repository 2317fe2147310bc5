"""The line that opens a broker's database in psql."""

from pathlib import Path

from mqdb.cli.psql import psql_command, without_password

SECRET = "geheim"


def test_the_password_is_read_from_the_home_and_never_shown() -> None:
    dsn = f"postgresql://mqdb:{SECRET}@127.0.0.1:20001/mqdb?sslmode=disable"

    command = psql_command(dsn, Path("/srv/my mq"))

    assert command == (
        """PGPASSWORD="$(cat '/srv/my mq/password')" psql 'postgresql://mqdb@127.0.0.1:20001/mqdb?sslmode=disable'"""
    )


def test_of_a_server_of_ones_own_psql_finds_the_password_itself() -> None:
    assert psql_command(f"postgresql://mqdb:{SECRET}@h1,h2/mqdb") == "psql postgresql://mqdb@h1,h2/mqdb"


def test_no_password_is_left_wherever_it_stands() -> None:
    assert (
        without_password(f"postgresql://h/db?password={SECRET}&sslmode=require") == "postgresql://h/db?sslmode=require"
    )
    assert without_password("postgresql://h/db") == "postgresql://h/db"
