"""`mqdb selector explain`: the meaning and the cost of an SQL92 expression."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.options import Command, command_group, start
from mqdb.cli.rows import Brokers, Row, of_broker
from mqdb.errors import TopicNotFound

if TYPE_CHECKING:
    from rich.tree import Tree

    from mqdb_client import SelectorExplanation

app = command_group(
    """Try SQL92 expressions before consumers subscribe with them.

    \b
    [bold]Examples[/bold]
      mqdb selector explain "TAGS IN ('paid', 'shipped') AND price > 10.5"
      mqdb selector explain "price > 10.5" --topic orders
    """
)


@app.command(cls=Command)
def explain(
    context: typer.Context,
    expression: Annotated[str, typer.Argument(metavar="EXPRESSION", help="The SQL92 expression.", show_default=False)],
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="NAME",
            help="Test the expression on the messages of this topic.",
            show_default=False,
        ),
    ] = None,
    last: Annotated[
        int, typer.Option("--last", "-n", metavar="N", min=1, help="Number of messages to test, the latest first.")
    ] = 1_000,
    broker: Brokers = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how an expression is parsed, warnings about it, and the SQL that the database runs.

    With --topic, the command also measures how many of the latest messages match, and the plan and cost of a consumer's
    pull; it changes nothing.

    \b
    [bold]Examples[/bold]
      mqdb selector explain "a BETWEEN 0 AND 3 AND TAGS IN ('TagA', 'TagB')"
      mqdb selector explain "NOT a = 'x'"
      mqdb selector explain "price > 10.5" --topic orders --last 10000
      mqdb selector explain "price > 10" --json | jq -r .warnings[]
      mqdb selector explain -- "-a > 0"   # after -- nothing is an option
    """
    settings = start(context)
    from mqdb_client import Admin, Answers, Trial, explain_selector

    explained = explain_selector(expression)
    answers: Answers[Trial] = Answers()
    if topic is not None:
        with Admin(settings=settings) as admin:
            tried = admin.on_each(lambda one: one.selectors.try_on(topic, expression, last), broker)
        answers = tried.without(TopicNotFound)
    trials = [{"topic": topic, **of_broker(settings, name), **one._asdict()} for name, one in answers.results.items()]
    if as_json:
        print(json.dumps(_described(explained) | {"trials": trials}))
    else:
        _print(explained, trials)
    answers.check()


def _described(explained: "SelectorExplanation") -> Row:
    tree = ["  " * depth + label for depth, label in explained.tree]
    return {
        "expression": explained.expression,
        "properties": explained.properties,
        "tree": tree,
        "sql": explained.sql,
        "warnings": explained.warnings,
    }


def _print(explained: "SelectorExplanation", trials: list[Row]) -> None:
    from rich.markup import escape

    from mqdb.cli.console import standard_output

    console = standard_output()
    console.print(_tree_of(explained))
    console.print(f"\n[bold]Properties[/bold]: {escape(', '.join(explained.properties)) or 'none'}")
    console.print("\n[bold]SQL[/bold]")
    console.print(escape(explained.sql), soft_wrap=True)
    if explained.warnings:
        console.print("\n[bold]Warnings[/bold]")
    for warning in explained.warnings:
        console.print(f"- {escape(warning)}")
    for trial in trials:
        where = f" on {trial['broker']}" if "broker" in trial else ""
        console.print(f"\n[bold]{escape(trial['topic'])}{where}[/bold]: {_verdict(trial)}")
        console.print(f"A pull that reads up to {trial['scanned']:,} of them takes {trial['milliseconds']:,} ms:")
        console.print(escape("\n".join(trial["plan"])), soft_wrap=True)


def _verdict(trial: Row) -> str:
    return f"{trial['matched']:,} of the last {trial['examined']:,} messages match"


def _tree_of(explained: "SelectorExplanation") -> "Tree":
    from rich.markup import escape
    from rich.tree import Tree

    (_, root_label), *lines = explained.tree
    path = [Tree(escape(root_label))]
    for depth, label in lines:
        del path[depth:]
        path.append(path[-1].add(escape(label)))
    return path[0]
