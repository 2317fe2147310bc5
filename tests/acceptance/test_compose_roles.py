"""The roles of docker-compose.yml, tried on a local server, because the tests run without a Docker engine."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest
import yaml

from mqdb.embedded import EmbeddedPostgres
from mqdb.embedded.account import postgres_environment
from mqdb.server import Server
from mqdb.settings import load_settings
from tests.fixtures.clusters import home_with_cluster
from tests.fixtures.postgres import libpq_15, query
from tests.fixtures.processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "it's @:/#% odd"


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """A server with only its superuser, like a new volume of the image."""
    with home_with_cluster(is_migrated=False) as home, EmbeddedPostgres(home, durable=False) as server:
        with psycopg.connect(server.superuser_dsn, autocommit=True) as superuser:
            superuser.execute("DROP DATABASE mqdb")
            superuser.execute("DROP ROLE mqdb")
        yield server


def test_the_owner_of_the_schema_is_no_superuser_and_needs_no_more(server: EmbeddedPostgres) -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    with psycopg.connect(server.superuser_dsn, autocommit=True) as superuser:
        # As docker_process_sql in the image's docker-entrypoint.sh.
        done = subprocess.run(
            [server.binaries.program("psql"), "--set=ON_ERROR_STOP=1", "--no-psqlrc", libpq_15(server.superuser_dsn)],
            input=compose["configs"]["owner.sql"]["content"],
            env=postgres_environment() | {"MQDB_PASSWORD": PASSWORD},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        roles = "select rolname, rolsuper, rolcreaterole, rolcreatedb from pg_roles where rolname !~ '^pg_' order by 1"
        assert superuser.execute(roles).fetchall() == [("mqdb", False, False, False), ("postgres", True, True, True)]
        assert superuser.execute("select rolpassword from pg_authid where rolname = 'postgres'").fetchone() == (None,)
        superuser.execute("create role stranger login password 'stranger'")

    place = urlsplit(server.dsn)
    dsn = place._replace(netloc=f"mqdb:{quote(PASSWORD, safe='')}@127.0.0.1:{server.port}").geturl()
    with Server(load_settings(dsn=dsn)) as broker:
        wait_until(lambda: broker.is_leader)
        assert query(dsn, "select current_user") == "mqdb"
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(place._replace(netloc=f"stranger:stranger@127.0.0.1:{server.port}").geturl())
