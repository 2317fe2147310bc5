"""Tracebacks on the page of a dead letter: frames of libraries are folded, and no line is lost."""

from mqdb.dashboard.views.tracebacks import traceback_parts

HEAD = "Traceback (most recent call last):"
CLIENT = (
    '  File "/srv/venv/lib/python3.12/site-packages/mqdb_client/consumer/listening.py", line 9, in _consume\n    f(m)'
)
OWN = '  File "/srv/shop/billing.py", line 34, in charge\n    json.loads(body)\n    ~~~~~~~~~~^^^^^^'
LIBRARY = '  File "/usr/lib/python3.12/json/__init__.py", line 346, in loads\n    return decoder.decode(s)'
DECODER = '  File "/usr/lib/python3.12/json/decoder.py", line 337, in decode\n    raise error'
END = "json.decoder.JSONDecodeError: Expecting value"


def test_runs_of_library_frames_are_parts_with_their_number() -> None:
    text = "\n".join([HEAD, CLIENT, OWN, LIBRARY, DECODER, END])

    parts = traceback_parts(text)

    assert [(part.text, part.library_frames) for part in parts] == [
        (HEAD, 0),
        (CLIENT, 1),
        (OWN, 0),
        (f"{LIBRARY}\n{DECODER}", 2),
        (END, 0),
    ]
    assert "\n".join(part.text for part in parts) == text


def test_a_chain_keeps_the_sentence_between_its_tracebacks() -> None:
    between = "\nDuring handling of the above exception, another exception occurred:\n"
    text = "\n".join([HEAD, OWN, END, between, HEAD, CLIENT, OWN, END])

    parts = traceback_parts(text)

    assert [part.library_frames for part in parts] == [0, 1, 0]
    assert "\n".join(part.text for part in parts) == text


def test_a_text_without_frames_of_the_user_is_not_folded() -> None:
    for text in (
        "\n".join([HEAD, CLIENT, END]),
        "java.lang.IllegalStateException\n\tat shop.Billing.charge(Billing.java:34)",
    ):
        assert [(part.text, part.library_frames) for part in traceback_parts(text)] == [(text, 0)]
    assert traceback_parts("") == []
