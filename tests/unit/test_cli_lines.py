"""Input of `mqdb send`: where lines end, and that a batch never waits for more lines."""

import os

from mqdb.cli.lines import Lines, batches


def lines_of(*chunks: bytes, is_file: bool = False) -> Lines:
    """The lines of a pipe that returns these chunks, one for each read."""
    waiting = list(chunks)
    return Lines(-1, is_file=is_file, read=lambda _descriptor, _size: waiting.pop(0) if waiting else b"")


def test_lines_are_whole_however_they_are_cut() -> None:
    assert list(lines_of(b"on", b"e\ntw", b"o\r\n", b"\nthree")) == [b"one", b"two", b"", b"three"]


def test_a_line_end_at_the_end_of_the_input_begins_no_line() -> None:
    assert list(lines_of(b"one\n")) == [b"one"]
    assert list(lines_of()) == []


def test_lines_come_from_a_descriptor() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\n")
    os.close(writing)

    lines = Lines(reading)

    assert list(lines) == [b"one", b"two"]
    assert lines.read_bytes == 8
    os.close(reading)


def test_what_is_no_line_is_taken_as_it_is() -> None:
    assert lines_of(b"a\r\n", b"\n\xff").rest() == b"a\r\n\n\xff"


def test_a_batch_has_what_is_there_and_waits_for_nothing() -> None:
    lines = lines_of(b"1\n2\n3\n4", b"\n5\n")

    assert list(batches(lines, lines.has_more_at_hand, 2)) == [[b"1", b"2"], [b"3"], [b"4", b"5"]]


def test_a_batch_of_a_file_is_as_large_as_it_may_be() -> None:
    lines = lines_of(b"1\n2\n3\n4", b"\n5\n6", is_file=True)

    assert list(batches(lines, lines.has_more_at_hand, 4)) == [[b"1", b"2", b"3", b"4"], [b"5", b"6"]]
