"""docker-compose.yml starts in the right order, survives a restart, and is reachable from this machine only."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from mqdb.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]

Compose = dict[str, Any]


@pytest.fixture(scope="module")
def compose() -> Compose:
    content: Compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return content


def test_every_service_has_a_healthcheck_and_comes_back_after_a_crash(compose: Compose) -> None:
    for service in compose["services"].values():
        assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
        assert service["restart"] == "unless-stopped"


def test_mqdb_waits_until_postgresql_is_healthy(compose: Compose) -> None:
    assert compose["services"]["mqdb"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}


def test_the_database_lies_in_a_named_volume(compose: Compose) -> None:
    mounts = dict(volume.split(":") for volume in compose["services"]["postgres"]["volumes"])

    assert set(mounts) == set(compose["volumes"])
    assert list(mounts.values()) == ["/var/lib/postgresql"]


def test_ports_are_published_on_the_loopback_address_only(compose: Compose) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]

    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_dsn_leads_to_the_postgresql_beside_it(compose: Compose) -> None:
    environment = compose["services"]["mqdb"]["environment"]
    script = compose["configs"]["owner.sql"]["content"]

    broker = load_settings(dsn=environment["MQDB_DSN"]).broker

    assert broker is not None
    assert broker.dsn == "postgresql://mqdb@postgres:5432/mqdb"
    assert "CREATE ROLE mqdb LOGIN" in script
    assert "CREATE DATABASE mqdb OWNER mqdb" in script


def test_the_owner_is_made_by_the_image_before_anybody_can_connect(compose: Compose) -> None:
    postgres = compose["services"]["postgres"]

    assert "POSTGRES_USER" not in postgres["environment"]  # so the superuser is postgres, as the script has it
    assert postgres["configs"] == [{"source": "owner.sql", "target": "/docker-entrypoint-initdb.d/owner.sql"}]
    # `docker compose` would take a $ for one of its own variables.
    assert "$" not in compose["configs"]["owner.sql"]["content"]


def test_the_password_comes_from_the_environment(compose: Compose) -> None:
    postgres, mqdb = (compose["services"][name]["environment"] for name in ("postgres", "mqdb"))

    assert postgres["MQDB_PASSWORD"] == mqdb["PGPASSWORD"] == "${MQDB_PASSWORD:-mqdb}"
