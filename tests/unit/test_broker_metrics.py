"""Metrics of unreachable brokers, and of the servers that answer."""

import time

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from mqdb.errors import AuthenticationFailed, BrokerUnavailable, ServerIsStandby
from mqdb_client.broker_counts import BrokerCounts
from mqdb_client.metrics import MetricsHook
from mqdb_client.outage import Outage
from tests.fixtures.web import series

AWAY = BrokerUnavailable("h", "away")


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture(autouse=True)
def hook(registry: CollectorRegistry) -> MetricsHook:
    return MetricsHook(registry)


def counts_of(server: str = "a:5432", timeline: int | None = 1) -> BrokerCounts:
    """The counts of an open client instance."""
    counts = BrokerCounts("broker-a", Outage("h"))
    counts.outage.server, counts.outage.timeline = server, timeline
    counts.open()
    return counts


def said(registry: CollectorRegistry, *looks: BrokerCounts) -> dict[str, float]:
    for counts in looks:
        counts.look()
    found = series(generate_latest(registry).decode())
    return {name: value for name, value in found.items() if "_created" not in name}


def test_an_outage_is_counted_once_and_its_seconds_grow_as_long_as_it_lasts(registry: CollectorRegistry) -> None:
    counts = counts_of()
    before = said(registry, counts)
    assert (before["mqdb_client_outages_total"], before["mqdb_client_outage_seconds_total"]) == (0, 0)

    began = time.monotonic()
    for who in ("a duty", "a pull"):
        counts.outage.covers(who, AWAY)
    first = said(registry, counts)
    second = said(registry, counts)
    counts.outage.works("a duty")
    assert said(registry, counts)["mqdb_client_broker_away"] == 1
    counts.outage.works("a pull")
    after = said(registry, counts)
    lasted = time.monotonic() - began

    assert (first["mqdb_client_outages_total"], first["mqdb_client_broker_away"]) == (1, 1)
    seconds = [each["mqdb_client_outage_seconds_total"] for each in (first, second, after, said(registry, counts))]
    assert 0 < seconds[0] < seconds[1] < seconds[2] == seconds[3] < lasted
    assert (after["mqdb_client_outages_total"], after["mqdb_client_broker_away"]) == (1, 0)


def test_a_mistake_that_waiting_does_not_mend_is_no_outage(registry: CollectorRegistry) -> None:
    counts = counts_of()

    counts.outage.covers("a duty", AuthenticationFailed("h", "wrong password"))

    assert said(registry, counts)["mqdb_client_outages_total"] == 0


def test_a_broker_is_away_while_one_of_several_clients_is_without_it(registry: CollectorRegistry) -> None:
    one, other = counts_of(), counts_of()
    one.outage.covers("a duty", AWAY)
    other.outage.covers("a duty", AWAY)

    assert said(registry, one, other)["mqdb_client_outages_total"] == 2
    one.outage.works("a duty")
    assert said(registry, one, other)["mqdb_client_broker_away"] == 1
    other.close()
    assert said(registry)["mqdb_client_broker_away"] == 0


def test_the_server_that_answers_is_the_one_with_1(registry: CollectorRegistry) -> None:
    one, other = counts_of(), counts_of()
    assert said(registry, one, other)["mqdb_client_server_info{a:5432,1}"] == 1

    one.outage.server, one.outage.timeline = "b:5432", 2
    found = said(registry, one, other)
    assert (found["mqdb_client_server_info{a:5432,1}"], found["mqdb_client_server_info{b:5432,2}"]) == (1, 1)

    other.outage.server, other.outage.timeline = "b:5432", 2
    found = said(registry, one, other)
    assert (found["mqdb_client_server_info{a:5432,1}"], found["mqdb_client_server_info{b:5432,2}"]) == (0, 1)


def test_refusals_count_by_their_sqlstate(registry: CollectorRegistry) -> None:
    counts = counts_of()
    refused = ServerIsStandby("h", "read-only")
    refused.__cause__ = type("Refusal", (Exception,), {"sqlstate": "25006"})()

    counts.note_refusal(refused)
    assert said(registry, counts)["mqdb_client_refused_appends_total{25006}"] == 1
    counts.note_refusal(refused)
    counts.note_refusal(AWAY)  # nobody has refused it

    found = said(registry, counts)
    assert {name: value for name, value in found.items() if "refused" in name} == {
        "mqdb_client_refused_appends_total{25006}": 2
    }


def test_a_hook_that_nobody_holds_any_more_is_not_told(registry: CollectorRegistry) -> None:
    counts = counts_of()
    late = CollectorRegistry()
    MetricsHook(late)

    counts.outage.covers("a duty", AWAY)

    assert said(registry, counts)["mqdb_client_outages_total"] == 1
    assert "mqdb_client_outages_total" not in said(late, counts)
