"""`mqdb selector explain`: what an SQL92 expression means, and what it costs."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.connection import Answers, ask_each, chosen_brokers, connected_to
from mqdb.cli.options import Command, Group, start
from mqdb.cli.rows import Brokers, Row, of_broker
from mqdb.errors import TopicNotFound

if TYPE_CHECKING:
    from rich.tree import Tree

    from mqdb.broker.trial import Trial
    from mqdb.dsn import BrokerDsn
    from mqdb.selector import Selector

app = typer.Typer(cls=Group, rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
def selector(context: typer.Context) -> None:
    """Try SQL92 expressions before consumers subscribe by them.

    \b
    [bold]Examples[/bold]
      mqdb selector explain "TAGS IN ('paid', 'shipped') AND price > 10.5"
      mqdb selector explain "price > 10.5" --topic orders
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(cls=Command)
def explain(
    context: typer.Context,
    expression: Annotated[str, typer.Argument(metavar="EXPRESSION", help="The SQL92 expression.", show_default=False)],
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", metavar="NAME", help="Try it on the messages of this topic.", show_default=False),
    ] = None,
    last: Annotated[
        int, typer.Option("--last", "-n", metavar="N", min=1, help="On how many, the latest ones first.")
    ] = 1_000,
    broker: Brokers = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show how an expression is read, what surprises in it, and the SQL that the database runs.

    With a topic also how many of its latest messages match, and the plan of a
    consumer's pull with its cost; both are measured, and change nothing.

    \b
    [bold]Examples[/bold]
      mqdb selector explain "a BETWEEN 0 AND 3 AND TAGS IN ('TagA', 'TagB')"
      mqdb selector explain "NOT a = 'x'"
      mqdb selector explain "price > 10.5" --topic orders --last 10000
      mqdb selector explain "price > 10" --json | jq -r .warnings[]
      mqdb selector explain -- "-a > 0"   # after -- nothing is an option
    """
    settings = start(context)
    from mqdb.selector import compile_selector

    compiled = compile_selector(expression)
    answers: Answers[Trial] = Answers()
    if topic is not None:
        tried = _on_topic(compiled, topic, last)
        answers = ask_each(chosen_brokers(settings, broker), tried).without(TopicNotFound)
    described = _described(compiled)
    trials = [{"topic": topic, **of_broker(settings, name), **one._asdict()} for name, one in answers.results.items()]
    if as_json:
        print(json.dumps(described | {"trials": trials}))
    else:
        _print(compiled, described, trials)
    answers.check()


def _on_topic(selector: "Selector", topic: str, last: int) -> "Callable[[BrokerDsn], Trial]":
    def tried_on(one: "BrokerDsn") -> "Trial":
        from mqdb.broker.trial import try_selector
        from mqdb.cli.reader import tend_dispatch

        with connected_to(one) as connection:
            tend_dispatch(connection)
            return try_selector(connection, one.name, topic, selector, last)

    return tried_on


def _described(selector: "Selector") -> Row:
    from mqdb.selector.warnings import warnings_of
    from mqdb.selector.written import tree_lines

    return {
        "expression": selector.expression,
        "properties": sorted(selector.properties_used),
        "tree": ["  " * depth + label for depth, label in tree_lines(selector.tree)],
        "sql": _sql_of(selector),
        "warnings": [f"{warning.part}: {warning.reason}" for warning in warnings_of(selector.tree)],
    }


def _sql_of(selector: "Selector") -> str:
    """The condition as one can paste it into psql. What runs has its literals bound."""
    from sqlalchemy import column
    from sqlalchemy.dialects.postgresql import JSONB, dialect

    plain = dialect(paramstyle="named")  # type: ignore[no-untyped-call]
    plain._backslash_escapes = False  # until it has met a server it takes one for old, and doubles backslashes
    condition = selector.where(column("properties", JSONB))
    return str(condition.compile(dialect=plain, compile_kwargs={"literal_binds": True}))


def _print(selector: "Selector", described: Row, trials: list[Row]) -> None:
    from rich.markup import escape

    from mqdb.cli.console import standard_output

    console = standard_output()
    console.print(_tree_of(selector))
    console.print(f"\n[bold]Properties[/bold]: {escape(', '.join(described['properties'])) or 'none'}")
    console.print("\n[bold]SQL[/bold]")
    console.print(escape(described["sql"]), soft_wrap=True)
    if described["warnings"]:
        console.print("\n[bold]Warnings[/bold]")
    for warning in described["warnings"]:
        console.print(f"- {escape(warning)}")
    for trial in trials:
        where = f" on {trial['broker']}" if "broker" in trial else ""
        console.print(f"\n[bold]{escape(trial['topic'])}{where}[/bold]: {_verdict(trial)}")
        console.print(f"A pull that looks at up to {trial['scanned']:,} of them takes {trial['milliseconds']:,} ms:")
        console.print(escape("\n".join(trial["plan"])), soft_wrap=True)


def _verdict(trial: Row) -> str:
    return f"{trial['matched']:,} of the last {trial['examined']:,} messages match"


def _tree_of(selector: "Selector") -> "Tree":
    from rich.markup import escape
    from rich.tree import Tree

    from mqdb.selector.written import tree_lines

    lines = tree_lines(selector.tree)
    _, root_label = next(lines)
    path = [Tree(escape(root_label))]
    for depth, label in lines:
        del path[depth:]
        path.append(path[-1].add(escape(label)))
    return path[0]
