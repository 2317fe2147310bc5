"""`mqdb web` at a standby: every page works, and the health part names the standby."""

from collections.abc import Iterator

import pytest

from mqdb.common.http_address import HttpAddress
from mqdb.dashboard.dashboard import Dashboard
from mqdb.settings import load_settings
from mqdb.store.engine import create_engine
from tests.fixtures.dashboard import Site, Visitor, fill, paths, serving_alone
from tests.fixtures.postgres import Database
from tests.fixtures.standby import Standby
from tests.fixtures.web import ANY_PORT

B = "/b/broker-a/"


@pytest.fixture(scope="module")
def site(standby: Standby) -> Iterator[Site]:
    """A dashboard at the standby, with data that is replicated from the primary."""
    database = Database(standby.primary.dsn)
    engine = create_engine(database.dsn)
    with engine.connect() as connection:
        shop = fill(connection)
    engine.dispose()
    standby.catch_up()
    dashboard = Dashboard(load_settings(dsn=standby.dsn, http=ANY_PORT))
    yield Site(database, HttpAddress("127.0.0.1", 0), dashboard, shop, [])
    dashboard.close()


@pytest.fixture(scope="module", params=[True, False], ids=["read only", "for changes"])
def visitor(request: pytest.FixtureRequest, standby: Standby) -> Iterator[Visitor]:
    with serving_alone(dsn=standby.dsn, web_read_only=request.param) as visitor:
        yield visitor


def test_every_page_works_at_a_standby(site: Site, visitor: Visitor) -> None:
    # A read-only dashboard has no pages with forms for changes.
    forms = ("/new-topic", "/new-cron", "/send", "?edit=1")
    answers = {path: visitor.get(path).status for path in paths(site) if not path.endswith(forms)}

    assert {path: status for path, status in answers.items() if status not in (200, 303)} == {}
    assert visitor.get("/readyz").status == 200


def test_health_names_the_standby(site: Site, visitor: Visitor) -> None:
    health = visitor.page(B + "health")

    assert "this server is a standby of 127.0.0.1:" in health
    assert "runs the services" not in health


def test_a_change_at_a_standby_says_that_the_primary_is_needed(site: Site, standby: Standby) -> None:
    with serving_alone(dsn=standby.dsn) as visitor:
        reply = visitor.act(B + "new-topic", name="bills", queues="1")

    assert reply.status == 503
    assert "is a standby" in reply.body
