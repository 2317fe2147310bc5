"""SQL92 selectors in PostgreSQL agree with an evaluator that shares only RocketMQ's rules with them.

Each run draws new selectors and messages, a hundred pairs for each of MQDB_FUZZ_CASES. MQDB_SELECTOR_SEED repeats a
run, and MQDB_SELECTOR_CASES makes it longer:

    MQDB_SELECTOR_CASES=1000000 pytest tests/integration/selectors/test_selector_agrees.py
"""

import json
import logging
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
from sqlalchemy import Connection, Engine, Select, Text, bindparam, cast, column, func, select
from sqlalchemy.dialects.postgresql import JSONB

from mqdb.errors import SelectorSyntaxError
from mqdb.selector import Selector, compile_selector
from tests.fixtures.fuzz import fuzz_cases
from tests.fixtures.sql92_evaluator import ERROR, Expression, Refused, TextAfterExpression, Verdict, compile_text
from tests.fixtures.sql92_evaluator.selectors import PropertyWriter, SelectorWriter

logger = logging.getLogger(__name__)

SEED: Final = int(os.environ.get("MQDB_SELECTOR_SEED", random.SystemRandom().randrange(2**32)))

#: Pairs of a legal selector and a message.
CASES: Final = int(os.environ.get("MQDB_SELECTOR_CASES", 40 * fuzz_cases()))

_MESSAGES_PER_SELECTOR: Final = 20
_MOST_DISAGREEMENTS: Final = 20

#: What is delivered tells true from all else. These tell false, null and errors from each other.
_PROBES: Final = ("{}", "NOT ({})", "({}) IS NULL", "({}) OR TRUE")


@pytest.mark.slow
@pytest.mark.timeout(60 + CASES // 250)
def test_postgresql_answers_what_the_evaluator_answers(engine: Engine) -> None:
    comparison = Comparison(SEED)

    with engine.connect() as connection:
        comparison.run(connection, CASES)

    logger.info("compared %s", comparison)
    assert not comparison.disagreements, "\n".join([str(comparison), *comparison.disagreements])
    assert comparison.share_of_texts("legal") >= 0.5, comparison
    assert 1 - comparison.share_of_verdicts(None) >= 0.3, comparison
    assert comparison.share_of_verdicts(ERROR) >= 0.05, comparison
    assert comparison.share_of_verdicts(True) >= 0.1, comparison


class Comparison:
    """Draws selectors and messages from a seed, evaluates them on both sides, and counts."""

    def __init__(self, seed: int) -> None:
        self.disagreements: list[str] = []
        self._seed = seed
        self._texts: Counter[str] = Counter()
        self._verdicts: Counter[Verdict] = Counter()
        rng = random.Random(seed)
        self._selectors = SelectorWriter(rng)
        self._messages = PropertyWriter(rng)

    def __str__(self) -> str:
        texts = ", ".join(f"{kind} {count}" for kind, count in self._texts.items())
        verdicts = ", ".join(f"{_name(verdict)} {count}" for verdict, count in self._verdicts.items())
        return f"MQDB_SELECTOR_SEED={self._seed}: texts: {texts}; verdicts: {verdicts}"

    def share_of_texts(self, kind: str) -> float:
        return self._texts[kind] / self._texts.total()

    def share_of_verdicts(self, verdict: Verdict) -> float:
        return self._verdicts[verdict] / self._verdicts.total()

    def run(self, connection: Connection, cases: int) -> None:
        """Evaluate messages until there are `cases` verdicts, or enough disagreements."""
        while self._verdicts.total() < cases and len(self.disagreements) < _MOST_DISAGREEMENTS:
            text = self._selectors.selector()
            try:
                self._compare(connection, text)
            except Exception as error:
                error.add_note(f"{self}\nselector: {text!r}")
                raise

    def _compare(self, connection: Connection, text: str) -> None:
        pairs = list(self._compiled(text))
        self._texts["legal" if pairs else "refused"] += 1
        if pairs:
            messages = [self._messages.properties(self._selectors.hints) for _ in range(_MESSAGES_PER_SELECTOR)]
            self._verdicts.update(pairs[0][0].evaluate(message) for message in messages)
            self._judge(connection, pairs, messages)

    def _compiled(self, text: str) -> Iterator[tuple[Expression, Selector]]:
        """The selector and its probes that both sides consider legal; nothing if they refuse the selector."""
        for probe in _PROBES:
            expected, answer = _expected(probe.format(text)), _answer(probe.format(text))
            if isinstance(expected, Expression) and isinstance(answer, Selector):
                yield expected, answer
                continue
            if not _refused_alike(expected, answer):
                self.disagreements.append(f"{probe.format(text)!r}: {_told(answer)}; expected {_told(expected)}")
            if probe == "{}":
                return

    def _judge(
        self,
        connection: Connection,
        pairs: Sequence[tuple[Expression, Selector]],
        messages: Sequence[dict[str, str]],
    ) -> None:
        statement = _matches([selector for _, selector in pairs])
        rows = connection.execute(statement, {"messages": json.dumps(messages)})
        for number, *matches in rows:
            message = messages[number - 1]
            for (expression, _), match in zip(pairs, matches, strict=True):
                expected = expression.evaluate(message)
                if (match is True) is not (expected is True):
                    self.disagreements.append(f"{expression.text!r} on {message}: {match}; expected {_name(expected)}")


def _expected(text: str) -> Expression | Refused:
    try:
        return compile_text(text)
    except Refused as refused:
        return refused


def _answer(text: str) -> Selector | SelectorSyntaxError:
    try:
        return compile_selector(text)
    except SelectorSyntaxError as error:
        return error


def _refused_alike(expected: Expression | Refused, answer: Selector | SelectorSyntaxError) -> bool:
    """Both sides must agree on the beginning of a tail, but not on the position of any other fault."""
    if isinstance(expected, TextAfterExpression) and isinstance(answer, SelectorSyntaxError):
        return expected.position == answer.position
    return isinstance(expected, Refused) and isinstance(answer, SelectorSyntaxError)


def _matches(selectors: Sequence[Selector]) -> Select[Any]:
    """One row for each message: its number, from 1, and the result of each selector. `messages` is a JSON array."""
    messages = cast(bindparam("messages", type_=Text), JSONB)
    stored = (
        func.jsonb_array_elements(messages)
        .table_valued(column("properties", JSONB), with_ordinality="number", name="stored")
        .render_derived()
    )
    answers = [selector.where(stored.c.properties).label(f"answer_{n}") for n, selector in enumerate(selectors)]
    return select(stored.c.number, *answers)


def _name(verdict: Verdict) -> str:
    return "error" if verdict is ERROR else str(verdict)


def _told(outcome: object) -> str:
    match outcome:
        case Refused(position=position):
            return f"{type(outcome).__name__} at {position}"
        case SelectorSyntaxError(position=position):
            return f"refused at {position}: {outcome}"
        case _:
            return "legal"
