"""RocketMQ's published SDK examples against mqdb, one by one: signed, and over TLS, which is their default."""

from collections.abc import Iterator

import pytest

from mqdb.common.dsn import BrokerDsn
from mqdb.common.http_address import HttpAddress
from mqdb.embedded import EmbeddedPostgres
from mqdb.grpc.certificate import self_signed
from mqdb.grpc.front import GrpcFront
from mqdb_client import Admin
from tests.fixtures.postgres import new_database
from tests.fixtures.program_cache import skipped_if_missing
from tests.fixtures.remoting_kit import served_broker
from tests.grpc.published_examples import EXAMPLES, KEY, Example, PublishedExamples


@pytest.fixture(scope="module")
def published_examples(tmp_path_factory: pytest.TempPathFactory) -> PublishedExamples:
    examples = PublishedExamples(tmp_path_factory.mktemp("examples"))
    with skipped_if_missing():
        examples.build()
    return examples


@pytest.fixture(scope="module")
def signed_front(
    postgres: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GrpcFront, str]]:
    """A front that requires keys, with a plain port and a TLS port; returns it with the DSN of its broker."""
    home = tmp_path_factory.mktemp("published")
    anywhere = HttpAddress("127.0.0.1", 0)
    with new_database(postgres, template_database) as database, served_broker(database.dsn, home):
        with Admin(database.dsn) as admin:
            admin.acl.grant(KEY[0], send=["*"], read=["*"], external=True)
            admin.acl.set_secret(*KEY)
        front = GrpcFront(
            BrokerDsn("broker-a", database.dsn), anywhere, tls_address=anywhere, certificate=self_signed("127.0.0.1")
        )
        front.start()
        yield front, database.dsn
        front.stop()


@pytest.mark.long
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_a_published_example(
    published_examples: PublishedExamples, signed_front: tuple[GrpcFront, str], example: Example
) -> None:
    front, dsn = signed_front

    fault = published_examples.run(example, front, dsn)

    assert fault is None, fault
