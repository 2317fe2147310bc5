"""The DSNs, checks, alerts and program in docs/high-availability.md exist. The drill actually uses the DSNs."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from mqdb.broker.doctor.examine import chosen
from mqdb.common.dsn import parse_brokers
from mqdb.store.server_choice import ServerChoice, ServerRole

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "high-availability.md").read_text()

DSNS = sorted(set(re.findall(r"postgresql://[^`\s]+", PAGE)))


def test_the_page_has_dsns() -> None:
    assert len(DSNS) >= 5


@pytest.mark.parametrize("dsn", DSNS)
def test_each_dsn_is_one_broker_and_writers_ask_it_for_the_primary(dsn: str) -> None:
    [broker] = parse_brokers(dsn, "broker-a")
    given = conninfo_to_dict(broker.dsn)
    for_reads = given.get("target_session_attrs")

    [attempt] = ServerChoice(given, "target", ServerRole.PRIMARY, {}).arguments()

    assert for_reads in (None, "prefer-standby")
    assert attempt.get("target_session_attrs") == ("read-write" if for_reads is None else None)


@pytest.mark.parametrize("names", re.findall(r"mqdb doctor --only ([a-z,]+)", PAGE))
def test_the_doctor_has_each_check(names: str) -> None:
    assert len(chosen(names.split(","))) == len(names.split(","))


def test_each_alert_is_there() -> None:
    named = set(re.findall(r"`(Mqdb\w+)`", PAGE))
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"]
    assert named
    assert named <= {rule["alert"] for group in groups for rule in group["rules"]}


def test_the_program_runs() -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    assert names["producer"].group == "orders"


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE))))
def test_each_link_leads_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).exists()
