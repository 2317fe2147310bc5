"""SQL92 selectors: their meaning and their costs."""

from dataclasses import dataclass

from mqdb.broker.filters import trial
from mqdb.broker.filters.trial import Trial
from mqdb.common.argument_types import checked
from mqdb_client.admin.subject import Subject


@dataclass(frozen=True, slots=True)
class SelectorExplanation:
    """The meaning of a selector, in parts."""

    expression: str
    properties: tuple[str, ...]
    """Names of the properties that it looks at."""
    tree: tuple[tuple[int, str], ...]
    """Its parts in the order of a walk through its tree, each with its depth."""
    sql: str
    """The condition that the database evaluates, as one can paste it into psql."""
    warnings: tuple[str, ...]
    """Parts of it that may mean something else than they seem to."""


class Selectors(Subject):
    """Tries selectors on the messages of a broker."""

    def try_on(self, topic: str, expression: str, last: int = 1_000) -> Trial:
        """Count the matches among the latest messages of a topic, and measure the pull of a consumer. Changes nothing.

        Raises SelectorSyntaxError, TopicNotFound, and ParameterInvalid for a topic that cannot be read.
        """
        from mqdb.selector import compile_selector

        selector = compile_selector(expression)
        with self._access.dispatched() as connection:
            return trial.try_selector(connection, self._access.name, topic, selector, last)


@checked
def explain_selector(expression: str) -> SelectorExplanation:
    """Explain the meaning of a selector, without asking a broker. Raises SelectorSyntaxError."""
    from sqlalchemy import column
    from sqlalchemy.dialects.postgresql import JSONB, dialect

    from mqdb.selector import compile_selector
    from mqdb.selector.warnings import warnings_of
    from mqdb.selector.written import tree_lines

    selector = compile_selector(expression)
    plain = dialect(paramstyle="named")  # type: ignore[no-untyped-call]
    plain._backslash_escapes = False  # until it has met a server it takes one for old, and doubles backslashes
    # Literals stand in this text for people. A pull binds them.
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
