"""The offset file of a broadcasting consumer: stored offsets are read back, and broken contents are ignored."""

import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.common.message import MessageQueue
from mqdb.common.proof import MOST_PROOFS, Proof, thinned
from mqdb.errors import IllegalState, OffsetsUnusable
from mqdb_client.consumer.offsets.local_offsets import LocalOffset, LocalOffsets, offsets_directory

FIRST = MessageQueue("orders", "broker-a", 0)
SECOND = MessageQueue("orders", "broker-b", 0)

#: When the topic was created.
THEN = datetime(2024, 2, 29, 12, 0, 0, 123_456, tzinfo=UTC)

Opened = Callable[[], LocalOffsets]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "home" / "10.0.0.7@DEFAULT" / "billing"


@pytest.fixture
def opened(directory: Path) -> Iterator[Opened]:
    """Open the file as a consumer does that starts after the previous one has exited."""
    latest: list[LocalOffsets] = []

    def reopen() -> LocalOffsets:
        close()
        offsets = LocalOffsets(directory)
        offsets.open()
        latest.append(offsets)
        return offsets

    def close() -> None:
        while latest:
            latest.pop().close()

    yield reopen
    close()


def at(next_offsets: dict[MessageQueue, int], created_at: datetime = THEN) -> dict[MessageQueue, LocalOffset]:
    return {queue: LocalOffset(created_at, next_offset) for queue, next_offset in next_offsets.items()}


def next_offset(offsets: LocalOffsets, queue: MessageQueue, created_at: datetime = THEN) -> int | None:
    found = offsets.get(queue, created_at)
    return found.next_offset if found else None


def break_file(path: Path, content: str = "{") -> None:
    path.write_text(content)


def entry_with(**values: object) -> str:
    """A file with one entry, in which some values are replaced."""
    entry = {"topic": "orders", "topic_created_at": THEN.isoformat(), "broker_name": "broker-a", "queue_id": 0}
    return json.dumps({"offsets": [entry | {"next_offset": 18, "proofs": []} | values]})


# -- what was put is there again --------------------------------------------------------------


def test_a_new_consumer_has_no_offsets(opened: Opened) -> None:
    offsets = opened()

    assert next_offset(offsets, FIRST) is None
    assert not offsets.knows("orders", "broker-a", THEN)


def test_offsets_are_there_after_a_restart(opened: Opened) -> None:
    opened().put(at({FIRST: 17, SECOND: 2**62}))

    offsets = opened()

    assert (next_offset(offsets, FIRST), next_offset(offsets, SECOND)) == (17, 2**62)


def test_what_is_not_put_stays(opened: Opened) -> None:
    offsets = opened()
    offsets.put(at({FIRST: 17, SECOND: 18}))

    offsets.put(at({FIRST: 3}))

    assert (next_offset(opened(), FIRST), next_offset(opened(), SECOND)) == (3, 18)


def test_a_topic_is_known_on_the_broker_where_a_queue_was_put(opened: Opened) -> None:
    offsets = opened()
    offsets.put(at({FIRST: 0}))

    assert offsets.knows("orders", "broker-a", THEN)
    assert not offsets.knows("orders", "broker-b", THEN)
    assert not offsets.knows("payments", "broker-a", THEN)


def test_an_offset_of_a_deleted_topic_is_none_of_the_new_one_of_that_name(opened: Opened) -> None:
    opened().put(at({FIRST: 17}))
    later = THEN + timedelta(microseconds=1)

    offsets = opened()

    assert next_offset(offsets, FIRST, later) is None
    assert not offsets.knows("orders", "broker-a", later)


def test_the_time_zone_in_which_a_topic_was_created_does_not_matter(opened: Opened) -> None:
    opened().put(at({FIRST: 17}, THEN.astimezone(timezone(timedelta(hours=5.5)))))

    assert next_offset(opened(), FIRST) == 17


def test_nothing_is_written_when_nothing_has_changed(opened: Opened) -> None:
    offsets = opened()
    offsets.put(at({FIRST: 17}))
    written = offsets.path.stat()

    offsets.put(at({FIRST: 17}))

    assert offsets.path.stat().st_ino == written.st_ino


# -- broken files -----------------------------------------------------------------------------


def test_a_file_that_is_cut_anywhere_is_replaced_by_its_copy(opened: Opened) -> None:
    offsets = opened()
    offsets.put(at({FIRST: 17}))
    offsets.put(at({FIRST: 18}))
    whole = offsets.path.read_text().rstrip()

    for length in range(len(whole)):
        break_file(offsets.path, whole[:length])
        assert next_offset(opened(), FIRST) == 17


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\0" * 100,
        "[]",
        '{"offsets": {}}',
        '{"offsets": [1]}',
        entry_with(next_offset="18"),
        entry_with(topic_created_at="yesterday"),
        entry_with(broker_name=None),
    ],
)
def test_a_file_that_holds_something_else_is_replaced_by_its_copy(
    opened: Opened, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = opened()
    offsets.put(at({FIRST: 17}))
    offsets.put(at({FIRST: 18}))
    break_file(offsets.path, content)

    with caplog.at_level(logging.WARNING):
        assert next_offset(opened(), FIRST) == 17

    [record] = caplog.records
    assert record.getMessage().startswith("could not read offset file ")


def test_the_copy_is_of_what_counted_last_also_after_a_restart(opened: Opened) -> None:
    opened().put(at({FIRST: 17}))
    opened().put(at({FIRST: 18}))
    offsets = opened()
    offsets.put(at({FIRST: 19}))
    break_file(offsets.path)

    assert next_offset(opened(), FIRST) == 18


def test_a_copy_that_was_needed_is_not_overwritten_by_the_broken_file(opened: Opened, directory: Path) -> None:
    offsets = opened()
    offsets.put(at({FIRST: 17}))
    offsets.put(at({FIRST: 18}))
    break_file(offsets.path)

    opened().put(at({FIRST: 19}))

    break_file(directory / "offsets.json")
    assert next_offset(opened(), FIRST) == 17


def test_a_copy_without_the_file_is_taken_for_it(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    offsets = opened()
    offsets.put(at({FIRST: 17}))
    offsets.put(at({FIRST: 18}))
    offsets.path.unlink()

    assert next_offset(opened(), FIRST) == 17
    assert not caplog.records  # that is how a killed consumer may leave it


@pytest.mark.parametrize("missing", [None, "offsets.json", "offsets.json.bak"])
def test_where_nothing_whole_is_left_the_consumer_does_not_start(
    opened: Opened, directory: Path, missing: str | None
) -> None:
    offsets = opened()
    offsets.put(at({FIRST: 17}))
    offsets.put(at({FIRST: 18}))
    for name in ("offsets.json", "offsets.json.bak"):
        break_file(directory / name)
    if missing is not None:
        (directory / missing).unlink()

    with pytest.raises(OffsetsUnusable, match=f"remove {directory} to start where a new consumer does"):
        opened()


def test_a_refused_start_lets_go_of_the_file(opened: Opened, directory: Path) -> None:
    opened()
    break_file(directory / "offsets.json")
    with pytest.raises(OffsetsUnusable):
        opened()

    (directory / "offsets.json").unlink()

    assert next_offset(opened(), FIRST) is None


def test_a_file_that_cannot_be_written_is_an_error_and_changes_nothing(opened: Opened, directory: Path) -> None:
    offsets = opened()
    offsets.put(at({FIRST: 17}))
    obstacle = directory / "offsets.json.tmp"
    obstacle.mkdir()
    with pytest.raises(OffsetsUnusable, match="cannot be written"):
        offsets.put(at({FIRST: 18}))
    assert next_offset(offsets, FIRST) == 17

    obstacle.rmdir()
    offsets.put(at({FIRST: 18}))

    assert next_offset(opened(), FIRST) == 18


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")

    with pytest.raises(OffsetsUnusable, match="cannot be locked"):
        LocalOffsets(tmp_path / "home" / "billing").open()


# -- one consumer for each file ---------------------------------------------------------------


def test_two_consumers_never_share_a_file(opened: Opened, directory: Path) -> None:
    opened()

    with pytest.raises(IllegalState, match="give each consumer its own instance_name"):
        LocalOffsets(directory).open()


def test_nobody_else_can_read_or_lock_the_file(opened: Opened, directory: Path) -> None:
    opened()

    modes = {path.name: path.stat().st_mode & 0o777 for path in (directory, directory / "offsets.lock")}

    assert modes == {directory.name: 0o700, "offsets.lock": 0o600}


def test_a_file_that_was_closed_can_be_opened_by_another_consumer(opened: Opened, directory: Path) -> None:
    offsets = opened()
    offsets.close()
    offsets.close()

    other = LocalOffsets(directory)
    other.open()
    other.close()


def test_groups_and_instances_have_directories_of_their_own(tmp_path: Path) -> None:
    assert offsets_directory(tmp_path, "10.0.0.7", "DEFAULT", "billing") == (
        tmp_path / "offsets" / "10.0.0.7@DEFAULT" / "billing"
    )


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_no_instance_name_leads_out_of_the_home(instance_name: str) -> None:
    home = Path("/home")

    directory = offsets_directory(home, "10.0.0.7", instance_name, "billing")

    assert directory.relative_to(home).parts[::2] == ("offsets", "billing")
    assert directory.resolve() == directory
    assert "\0" not in str(directory)


# -- proofs -------------------------------------------------------------------------------------


def proofs_at(*queue_offsets: int) -> list[Proof]:
    return [Proof(offset, offset, UUID(int=offset), THEN) for offset in queue_offsets]


def test_proofs_are_there_after_a_restart(opened: Opened) -> None:
    proofs = tuple(proofs_at(3, 16))
    opened().put({FIRST: LocalOffset(THEN, 17, proofs)})

    assert opened().get(FIRST, THEN) == LocalOffset(THEN, 17, proofs)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=300))
def test_of_many_proofs_few_are_kept_and_the_more_of_them_the_newer(steps: list[int]) -> None:
    proofs: tuple[Proof, ...] = ()
    queue_offset = 0
    for step in steps:
        queue_offset += step
        proofs = thinned([*proofs, *proofs_at(queue_offset)])

    assert len(proofs) == min(len(steps), MOST_PROOFS)
    assert (proofs[0].queue_offset, proofs[-1].queue_offset) == (steps[0], queue_offset)
    assert list(proofs) == sorted(proofs)


def test_a_log_that_goes_back_is_read_again_by_little_more_than_it_has_gone_back() -> None:
    """A log that goes back is reread by little more than it has gone back.

    After a commit every five seconds for a day, the consumer rereads at most three times the lost part.
    """
    proofs: tuple[Proof, ...] = ()
    for queue_offset in range(1, 17_281):
        proofs = thinned([*proofs, *proofs_at(queue_offset)])

    offsets = [proof.queue_offset for proof in proofs]
    for gone_back in (1, 10, 100, 1_000, 10_000):
        proven = max(offset for offset in offsets if offset <= 17_280 - gone_back)
        assert 17_280 - proven <= 3 * gone_back, offsets
