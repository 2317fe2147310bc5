"""SQL92 selectors: their meaning and their costs."""

from dataclasses import dataclass

from mqdb.broker.filters import trial
from mqdb.broker.filters.trial import Trial
from mqdb.common.argument_types import checked
from mqdb_client.admin.subject import Subject
from mqdb_client.option_rules import LIMIT


@dataclass(frozen=True, slots=True)
class SelectorExplanation:
    """The meaning of a selector, explained part by part."""

    expression: str
    properties: tuple[str, ...]
    """Names of the properties that the selector uses."""
    tree: tuple[tuple[int, str], ...]
    """The parts of the selector in depth-first order, each with its depth."""
    sql: str
    """The condition that the database evaluates, ready to paste into psql."""
    warnings: tuple[str, ...]
    """Parts that may not mean what they seem to mean."""


class Selectors(Subject):
    """Tries selectors on the messages of a broker."""

    def try_on(self, topic: str, expression: str, last: int = 1_000) -> Trial:
        """Count the matches among the latest messages of a topic, and measure a consumer's pull. Changes nothing.

        Raises SelectorSyntaxError, TopicNotFound, and ParameterInvalid for `last` and for a topic that cannot be read.
        """
        from mqdb.selector import compile_selector

        LIMIT.check("last", last)
        selector = compile_selector(expression)
        with self._access.dispatched() as connection:
            return trial.try_selector(connection, self._access.name, topic, selector, last)


@checked
def explain_selector(expression: str) -> SelectorExplanation:
    """Explain the meaning of a selector, without connecting to a broker. Raises SelectorSyntaxError."""
    from sqlalchemy import column
    from sqlalchemy.dialects.postgresql import JSONB, dialect

    from mqdb.selector import compile_selector
    from mqdb.selector.warnings import warnings_of
    from mqdb.selector.written import tree_lines

    selector = compile_selector(expression)
    plain = dialect(paramstyle="named")  # type: ignore[no-untyped-call]
    plain._backslash_escapes = False  # before it has seen a server it assumes an old one, and doubles backslashes
    # This text shows literals for readers. A pull binds them.
    condition = selector.where(column("properties", JSONB)).compile(
        dialect=plain, compile_kwargs={"literal_binds": True}
    )
    return SelectorExplanation(
        selector.expression,
        tuple(sorted(selector.properties_used)),
        tuple(tree_lines(selector.tree)),
        str(condition),
        tuple(f"{warning.part}: {warning.reason}" for warning in warnings_of(selector.tree)),
    )
