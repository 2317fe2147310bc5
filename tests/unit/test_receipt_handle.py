"""Receipt handles: which messages they identify, and how the handles of one batch are combined."""

from hypothesis import given
from hypothesis import strategies as st

from mqdb.common import receipt_handle

HEADS = ["0" * 64, "a" * 64, "0123456789abcdef" * 4]
_handles = st.builds(lambda head, place: f"{head}{1 << place:016x}", st.sampled_from(HEADS), st.integers(0, 63))


@given(st.lists(_handles))
def test_what_is_put_together_means_the_same_messages(handles: list[str]) -> None:
    batches = receipt_handle.together(handles)

    assert len(batches) <= len(HEADS)
    assert {each for batch in batches.values() for _, each in receipt_handle.each(batch)} == set(handles)
    assert all(receipt_handle.head_of(handle) in batches for handle in handles)


@given(st.lists(_handles, min_size=1), st.integers(0, 2**64 - 1))
def test_a_message_has_a_new_handle_if_its_batch_says_so(handles: list[str], moved: int) -> None:
    new = dict.fromkeys(receipt_handle.together(handles), f"{'f' * 64}{moved:016x}" if moved else None)

    for handle in handles:
        bit = int(handle[64:], 16)
        expected = "f" * 64 + handle[64:] if moved & bit else None
        assert receipt_handle.moved(handle, new) == expected


def test_what_is_no_handle_stands_for_itself() -> None:
    odd = ["", "x", "0" * 79, "0" * 81, "F" * 80, "\u0663" * 80, "0" * 79 + "\n"]

    assert receipt_handle.together(odd) == {each: each for each in odd}
    assert [receipt_handle.moved(each, dict.fromkeys(odd)) for each in odd] == [None] * len(odd)


def test_the_places_of_a_batch() -> None:
    handle = HEADS[0] + f"{(1 << 63) | 5:016x}"

    assert [place for place, _ in receipt_handle.each(handle)] == [0, 2, 63]
