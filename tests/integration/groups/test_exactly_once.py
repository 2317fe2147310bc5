"""Exactly once in the broker: two fences, each sufficient alone, and offsets that are folded but never lost."""

import os
import random
from collections.abc import Iterator

import pytest
from psycopg import errors as pg
from sqlalchemy import Connection, Engine, select, text

from mqdb.broker.consumers import exactly_once
from mqdb.broker.consumers.exactly_once import ConsumedBatch
from mqdb.broker.consumers.offsets import release_queues, take_queues
from mqdb.common.group import FROM_FIRST_OFFSET
from mqdb.common.message import MessageQueue
from mqdb.errors import QueueLost, StorageRefused
from mqdb.store.consumers import offset_commits
from mqdb.store.consumers.consumer_offsets import OwnedQueue, effective_offset
from mqdb.store.consumers.offset_commits import OffsetCommit
from mqdb.store.tables import consumer_offset
from mqdb_client.consumer.offsets.exactly_once_offset_store import ExactlyOnceOffsetStore
from mqdb_client.consumer.offsets.offset_store import BrokerOffsetStore
from tests.fixtures.broker import topic
from tests.fixtures.fuzz import fuzz_cases
from tests.fixtures.owners import GROUP, Race
from tests.fixtures.variants import usually

SEEDS = int(os.environ.get("MQDB_EXACTLY_ONCE_SEEDS", fuzz_cases() // 10))
FIRST_SEED = int(os.environ.get("MQDB_EXACTLY_ONCE_SEED", "0")) or random.randrange(1, 1_000_000)
FIRST = FROM_FIRST_OFFSET


# -- two owners ---------------------------------------------------------------------------------


@pytest.fixture
def race(broker: Connection, engine: Engine) -> Iterator[Race]:
    race = Race(engine, topic(broker).queue_keys[0])
    yield race
    race.close()


def violation(race: Race, seed: int) -> str:
    """The violation in the outcome of one seed, with its history; "" if there is no violation."""
    race.play(seed)
    consumed, next_offset = race.consumed(), race.next_offset()
    if consumed == list(range(next_offset)):
        return ""
    return "\n".join([f"seed {seed}: consumed {consumed}, next {next_offset}", *race.history])


OWNER = " AND mqdb.consumer_offset.owner = CAST(%(owner)s AS TEXT)"
EPOCH = " AND mqdb.consumer_offset.epoch = CAST(%(epoch)s AS BIGINT)"
FLOOR = " AND mqdb.consumer_offset.next_offset <= CAST(%(from_offset)s AS BIGINT)"
LOCK = " FOR SHARE"

#: What the append does not say, and which constraints the table does not have.
KEY = "offset_commit_pkey"
REFERENCE = "offset_commit_group_id_queue_key_fkey"  # its check locks the row as well, though less


def without(monkeypatch: pytest.MonkeyPatch, broker: Connection, parts: list[str], constraints: list[str]) -> None:
    append = offset_commits._append_text(is_marked=True)
    for part in parts:
        assert part in append
        append = append.replace(part, "")
    monkeypatch.setattr(offset_commits, "_append_text", lambda *, is_marked: append)
    for constraint in constraints:
        broker.execute(text(f"ALTER TABLE mqdb.offset_commit DROP CONSTRAINT {constraint}"))


@pytest.mark.timeout(60 + 10 * SEEDS)
@pytest.mark.parametrize(
    ("parts", "constraints"),
    usually(([], []), of=[([], []), ([], [KEY]), ([OWNER, EPOCH], [])]),
    ids=["both fences", "the epoch alone", "the key alone"],
)
def test_no_offset_is_consumed_by_two_transactions_and_none_is_skipped(
    race: Race, broker: Connection, monkeypatch: pytest.MonkeyPatch, parts: list[str], constraints: list[str]
) -> None:
    """No offset is consumed by two transactions, and none is skipped.

    Two members take the queue by force, give it back, are given up, and sometimes do not learn whether a commit
    happened.
    """
    without(monkeypatch, broker, parts, constraints)

    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        assert violation(race, seed) == ""


@pytest.mark.timeout(60 + 10 * SEEDS)
@pytest.mark.parametrize(
    ("parts", "constraints"),
    usually(
        ([OWNER, EPOCH], [KEY]),
        of=[([OWNER, EPOCH], [KEY]), ([LOCK], [KEY, REFERENCE]), ([OWNER, EPOCH, FLOOR], [])],
    ),
    ids=["no fence", "an epoch without a lock", "a key of rows that are gone"],
)
def test_the_race_finds_out_what_a_fence_cannot_do_without(
    race: Race, broker: Connection, monkeypatch: pytest.MonkeyPatch, parts: list[str], constraints: list[str]
) -> None:
    without(monkeypatch, broker, parts, constraints)

    assert any(violation(race, seed) for seed in range(100))


# -- commits ------------------------------------------------------------------------------------


@pytest.fixture
def owned(broker: Connection) -> OwnedQueue:
    """An owned queue of which member `a` has consumed nothing."""
    broker.execute(text("INSERT INTO mqdb.subscription_group (group_name) VALUES ('readers')"))
    [owned] = take_queues(broker, GROUP, "a", topic(broker).queue_keys, FIRST)
    return owned


@pytest.fixture
def store() -> ExactlyOnceOffsetStore:
    return ExactlyOnceOffsetStore(GROUP, BrokerOffsetStore(GROUP, "a"))


def consume(engine: Engine, owned: OwnedQueue, first: int, end: int, segment: int = 0, client_id: str = "a") -> None:
    """Run a transaction that consumes the offsets from `first` up to `end`."""
    batch = OffsetCommit(owned.queue_key, owned.epoch, first, end, segment)
    with engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
        connection.begin()
        exactly_once.begin(connection)
        exactly_once.commit(connection, ConsumedBatch(GROUP, client_id, MessageQueue("orders", "a", 0), batch))


def stored(broker: Connection, owned: OwnedQueue) -> tuple[int, int]:
    """The offset in the folded row, and the number of commits that are not folded yet."""
    offset = broker.scalar(text(f"SELECT next_offset FROM mqdb.consumer_offset WHERE queue_key = {owned.queue_key}"))
    assert isinstance(offset, int)
    return offset, broker.scalar(text("SELECT count(*) FROM mqdb.offset_commit")) or 0


@pytest.mark.parametrize("change", [{"epoch": 7}, {"queue_key": 0}], ids=["another epoch", "no such queue"])
def test_what_is_not_owned_is_not_committed(engine: Engine, owned: OwnedQueue, change: dict[str, int]) -> None:
    with pytest.raises(QueueLost):
        consume(engine, owned._replace(**change), 0, 5)


def test_what_was_given_back_is_not_committed(broker: Connection, engine: Engine, owned: OwnedQueue) -> None:
    release_queues(broker, GROUP, [owned])

    with pytest.raises(QueueLost):
        consume(engine, owned, 0, 5)


def test_another_member_does_not_commit_under_the_owners_epoch(engine: Engine, owned: OwnedQueue) -> None:
    with pytest.raises(QueueLost):
        consume(engine, owned, 0, 5, client_id="b")


@pytest.mark.parametrize("is_folded", [False, True])
def test_what_is_consumed_is_not_committed_again(
    broker: Connection, engine: Engine, owned: OwnedQueue, store: ExactlyOnceOffsetStore, is_folded: bool
) -> None:
    consume(engine, owned, 0, 5)
    if is_folded:
        store.commit(broker, [owned])

    with pytest.raises(QueueLost):
        consume(engine, owned, 0, 3)


def test_a_constraint_that_is_checked_at_the_commit_is_the_listeners(
    broker: Connection, engine: Engine, owned: OwnedQueue
) -> None:
    broker.execute(text("CREATE TABLE public.ledger (id integer UNIQUE DEFERRABLE INITIALLY DEFERRED)"))
    batch = OffsetCommit(owned.queue_key, owned.epoch, 0, 1, 0)
    with engine.connect().execution_options(isolation_level="READ COMMITTED") as connection:
        connection.begin()
        exactly_once.begin(connection)
        connection.execute(text("INSERT INTO public.ledger VALUES (1), (1)"))
        with pytest.raises(StorageRefused) as raised:
            exactly_once.commit(connection, ConsumedBatch(GROUP, "a", MessageQueue("orders", "a", 0), batch))

    assert isinstance(raised.value.__cause__, pg.UniqueViolation)
    assert stored(broker, owned) == (0, 0)


# -- the store ----------------------------------------------------------------------------------


def test_commits_are_folded_into_the_offset_that_all_can_see(
    broker: Connection, engine: Engine, owned: OwnedQueue, store: ExactlyOnceOffsetStore
) -> None:
    consume(engine, owned, 0, 5)
    consume(engine, owned, 5, 8, segment=3)
    before = stored(broker, owned)

    assert store.commit(broker, [owned]) == []

    assert (before, stored(broker, owned)) == ((0, 2), (8, 0))
    assert broker.scalar(text("SELECT segment FROM mqdb.consumer_offset")) == 3


def test_messages_that_nobody_asked_for_are_passed_by(
    broker: Connection, engine: Engine, owned: OwnedQueue, store: ExactlyOnceOffsetStore
) -> None:
    """Filtered-out messages are skipped: if a filter matches nothing, the offset advances without a transaction."""
    consume(engine, owned, 0, 5)
    store.commit(broker, [owned._replace(next_offset=9)])
    consume(engine, owned, 9, 10)
    store.commit(broker, [owned._replace(next_offset=9)])

    assert stored(broker, owned) == (10, 0)


def test_who_takes_a_queue_goes_on_behind_what_was_committed(
    broker: Connection, engine: Engine, owned: OwnedQueue
) -> None:
    consume(engine, owned, 0, 5)
    heir = ExactlyOnceOffsetStore(GROUP, BrokerOffsetStore(GROUP, "b"))

    [taken] = heir.take(broker, {owned.queue_key: MessageQueue("orders", "a", 0)}, FIRST, force=True)

    assert (taken.next_offset, taken.epoch) == (5, owned.epoch + 1)
    assert stored(broker, owned) == (5, 0)


def test_what_an_old_owner_folds_is_refused(
    broker: Connection, engine: Engine, owned: OwnedQueue, store: ExactlyOnceOffsetStore
) -> None:
    [taken] = take_queues(broker, GROUP, "b", [owned.queue_key], FIRST, force=True)
    consume(engine, taken, 0, 5, client_id="b")

    assert store.commit(broker, [owned]) == [owned]
    assert stored(broker, owned) == (0, 1)


def test_what_others_have_passed_by_does_not_come_back(
    broker: Connection, engine: Engine, owned: OwnedQueue, store: ExactlyOnceOffsetStore
) -> None:
    """Messages that others have passed are not delivered again.

    A killed member has left a commit behind, and non-transactional members continue.
    """
    consume(engine, owned, 0, 5)
    BrokerOffsetStore(GROUP, "a").commit(broker, [owned._replace(next_offset=20)])

    [taken] = store.take(broker, {owned.queue_key: MessageQueue("orders", "a", 0)}, FIRST, force=True)

    assert taken.next_offset == 20
    assert stored(broker, owned) == (20, 0)


def test_an_offset_that_does_not_exist_is_corrected_whatever_was_committed(
    broker: Connection, engine: Engine, owned: OwnedQueue, store: ExactlyOnceOffsetStore
) -> None:
    consume(engine, owned, 0, 50)

    assert store.correct(broker, owned._replace(next_offset=3))
    assert not store.correct(broker, owned._replace(next_offset=0, epoch=owned.epoch - 1))

    assert stored(broker, owned) == (3, 0)
    consume(engine, owned, 3, 4)


def test_the_effective_offset_is_known_before_it_is_folded(
    broker: Connection, engine: Engine, owned: OwnedQueue, store: ExactlyOnceOffsetStore
) -> None:
    consume(engine, owned, 0, 5)
    statement = select(effective_offset()).select_from(consumer_offset)
    before = broker.scalar(statement)
    store.commit(broker, [owned])

    assert (before, broker.scalar(statement)) == (5, 5)
