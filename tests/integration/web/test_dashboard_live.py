"""The live overview: figures from samples in memory, sent to each open page after each sample."""

import http.client
from collections.abc import Iterator
from contextlib import closing, contextmanager

from mqdb.dashboard.live.streams import MOST_STREAMS
from mqdb.web.time_series import BrokerFigure
from mqdb_client import Admin, Message, Producer
from tests.fixtures.dashboard import Site, Visitor, serving_alone
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until

LIVE = "/b/broker-a/live"


def cookie_of(visitor: Visitor) -> str:
    return "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())


@contextmanager
def stream(site: Site, cookie: str) -> Iterator[http.client.HTTPResponse]:
    """The response to a page that follows the live figures of the broker."""
    with closing(http.client.HTTPConnection(site.address.host, site.address.port, timeout=30)) as connection:
        connection.request("GET", LIVE, headers={"Cookie": cookie})
        yield connection.getresponse()


def next_event(answer: http.client.HTTPResponse) -> str:
    """The data of the next event; comments are skipped."""
    lines: list[str] = []
    while True:
        line = answer.readline().decode()
        assert line, "the stream has ended"
        if line.startswith("data: "):
            lines.append(line.removeprefix("data: "))
        elif lines:
            return "".join(lines)


def test_a_page_gets_the_figures_at_once_and_again_with_each_sample(site: Site) -> None:
    visitor = site.visitor()
    figures = site.dashboard.figures
    wait_until(lambda: figures.latest[1] is not None)
    with stream(site, cookie_of(visitor)) as answer:
        assert answer.status == 200
        assert answer.getheader("Content-Type", "").startswith("text/event-stream")
        assert "Stored" in next_event(answer)
        with Producer("live", site.database.dsn) as producer:
            producer.send_batch([Message("orders", b"1")] * 500)

        wait_until(lambda: any(point.value > 0 for point in figures.series.of(BrokerFigure.STORED, "orders")))
        while ">orders</a>" not in (part := next_event(answer)):
            pass

    assert '<path class="area s0"' in part
    assert "As a table" in part
    assert ">orders</a>" in visitor.page("/b/broker-a/")


def test_a_late_group_is_on_the_overview_with_the_last_change_on_it(site: Site) -> None:
    visitor = site.visitor()
    with Admin(site.database.dsn) as admin:
        admin.groups.update("billing", retry_max_times=3, actor="ada")
        admin.topics.create("unread", queues=1, actor="bob")
    wait_until(lambda: site.dashboard.figures.series.of(BrokerFigure.LAG, "billing"))

    overview, changes = visitor.page("/b/broker-a/"), visitor.page("/b/broker-a/late")

    assert '<span class="bad">no member</span>' in overview
    assert "group.update by ada" in changes
    assert "bob" not in changes


def test_a_stream_needs_a_login_and_their_number_is_bounded(site: Site) -> None:
    with stream(site, "") as answer:
        assert answer.status == 303
    visitor = site.visitor()
    live = site.dashboard.live
    opened = live.streams
    live.streams = MOST_STREAMS
    try:
        with stream(site, cookie_of(visitor)) as answer:
            assert (answer.status, answer.getheader("Retry-After")) == (503, "30")
    finally:
        live.streams = opened


def test_only_the_broker_of_the_pages_has_a_stream(site: Site) -> None:
    assert site.visitor().get("/b/broker-x/live").status == 404


def test_a_closed_page_frees_its_stream_with_the_next_sample(site: Site) -> None:
    visitor = site.visitor()
    with stream(site, cookie_of(visitor)) as answer:
        next_event(answer)
        assert site.dashboard.live.streams >= 1

    wait_until(lambda: site.dashboard.live.streams == 0)


def test_a_dashboard_without_samples_says_where_the_charts_are(database: Database) -> None:
    with serving_alone(dsn=database.dsn) as visitor:
        page = visitor.page("/b/broker-a/")

    assert "leads this broker" in page
    assert "data-live" not in page
