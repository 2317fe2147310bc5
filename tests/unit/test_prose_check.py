"""The prose check finds sentences that read as translated in all kinds of text, and accepts plain ones."""

from pathlib import Path

import pytest

from checks.prose import Sentence, hits, sentences

TRANSLATED = {
    "P1": "What waits is in `mqdb.scheduled`.",
    "P2": "Raises ParameterInvalid: it is none.",
    "P3": "A cron that the code has no more goes on.",
    "P4": "It refuses connections, for there are too many.",
    "P5": "It is made where there is none.",
    "P6": "Of its loop.",
    "P7": "They have to subscribe to the same.",
    "P8": "That cron.",
    "P9": "The client is told.",
    "P10": "It takes some 50 ms.",
}

PLAIN = (
    "Waiting messages are in `mqdb.scheduled`.",
    "Raises ParameterInvalid if `hook` is not a hook.",
    "A cron that is no longer in the code keeps firing.",
    "Too many connections; refusing new ones.",
    "Creates it if it does not exist.",
    "Call it from the event loop only.",
    "Calling it twice has no effect.",
    "The cron with this name, or None.",
    "could not re-register clients; will retry",
    "How does dispatch work?",
    "There is no lock for all of them.",
    "The messages in old queues, for each group that has not consumed them.",
)


def found(text: str) -> set[str]:
    return {pattern.name for pattern, _ in hits([Sentence("x.py", 1, "summary", text)])}


@pytest.mark.parametrize("name", TRANSLATED)
def test_a_translated_sentence_is_found(name: str) -> None:
    assert name in found(TRANSLATED[name])


@pytest.mark.parametrize("text", PLAIN)
def test_a_plain_sentence_passes(text: str) -> None:
    assert found(text) == set()


def test_each_kind_of_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(
        '''"""Where messages wait."""
import logging
logger = logging.getLogger(__name__)
class Gone(Exception):
    """Raised late.

    Not here any more. Nobody reads it.

        not this any more
    """
    sentence = "the topic is no more there"
logger.warning("cannot go on any more")
option("--x", help="written anew")
'''
    )
    markdown = "# Title", "Text that is written anew.", "```\nnot read anew\n```", "| a | is anew |"
    (tmp_path / "page.md").write_text("\n\n".join(markdown))
    (tmp_path / "view.sql").write_text("COMMENT " + "ON VIEW x IS 'Made anew; it''s a view';")
    (tmp_path / "page.html").write_text('<p title="set it anew">Shown {{ x }} anew</p><script>anew in code</script>')

    read = {(sentence.path, sentence.kind, sentence.text) for sentence in sentences(tmp_path)}

    assert read == {
        ("code.py", "summary", "Where messages wait."),
        ("code.py", "summary", "Raised late."),
        ("code.py", "docstring", "Not here any more."),
        ("code.py", "docstring", "Nobody reads it."),
        ("code.py", "error", "the topic is no more there"),
        ("code.py", "log", "cannot go on any more"),
        ("code.py", "help", "written anew"),
        ("page.md", "markdown", "Text that is written anew."),
        ("page.md", "markdown", "is anew"),
        ("view.sql", "comment on", "Made anew; it's a view"),
        ("page.html", "page", "set it anew"),
        ("page.html", "page", "Shown X anew"),
    }


def test_all_literals_of_the_client_and_of_mqdb_are_read(tmp_path: Path) -> None:
    (tmp_path / "mqdb").mkdir()
    (tmp_path / "mqdb" / "code.py").write_text(
        '''"""What waits."""
class Row:
    """Read once."""
    count: int
    """Counted anew."""
raise Invalid("topic", topic, f"is {topic!r}, " f"and no {'more here' if is_old else 'name'}")
'''
    )
    (tmp_path / "mqdb" / "refuse.sql").write_text("RAISE EXCEPTION 'it is no ''group'''; -- it's not read")

    read = {(sentence.kind, sentence.text) for sentence in sentences(tmp_path)}

    assert read == {
        ("summary", "What waits."),
        ("summary", "Read once."),
        ("docstring", "Counted anew."),
        ("text", "is X, and no X"),
        ("text", "more here"),
        ("text", "it is no 'group'"),
    }
