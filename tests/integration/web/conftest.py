"""A dashboard of a broker with data, and a visitor who has logged in.

A module that needs other settings has its own fixture `site`.
"""

from collections.abc import Iterator

import pytest

from mqdb.embedded import EmbeddedPostgres
from tests.fixtures.dashboard import Site, Visitor, serving_site
from tests.fixtures.postgres import new_database


@pytest.fixture(scope="module")
def site(postgres: EmbeddedPostgres, template_database: str) -> Iterator[Site]:
    """A site for all tests of a module, so each test uses its own topics and groups."""
    with new_database(postgres, template_database) as database, serving_site(database) as site:
        yield site


@pytest.fixture(scope="module")
def ann(site: Site) -> Visitor:
    """A person who has logged in."""
    return site.visitor()
