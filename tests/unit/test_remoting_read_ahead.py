"""Answers prepared for the pulls that are expected next."""

from mqdb.remoting.consuming.read_ahead import ReadAhead


def test_an_answer_is_given_once() -> None:
    ahead: ReadAhead[str] = ReadAhead()
    ahead.keep(1, "one", 10)

    assert [ahead.take(1), ahead.take(1), ahead.take(2)] == ["one", None, None]


def test_the_oldest_answers_go_when_there_are_too_many_bytes() -> None:
    ahead: ReadAhead[str] = ReadAhead(most_bytes=100)
    for key in range(4):
        ahead.keep(key, f"first {key}", 40)
    ahead.keep(3, "second 3", 60)

    assert [ahead.take(key) for key in range(4)] == [None, None, "first 2", "second 3"]
