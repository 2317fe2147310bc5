"""Options that the commands of `mqdb dlq` share: the choice of messages and brokers."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqdb.cli.rows import has_several
from mqdb.cli.times import parse_time

if TYPE_CHECKING:
    from mqdb_client import Admin, DeadLetterFilter


def _filter_option(*names: str, metavar: str | None = None, help: str) -> Any:
    panel = "Messages (a message has to meet all of these options)"
    return typer.Option(*names, metavar=metavar, help=help, show_default=False, rich_help_panel=panel)


SomeGroup = Annotated[
    str | None,
    typer.Argument(metavar="[GROUP]", help="The consumer group; if not given, all groups.", show_default=False),
]
Topic = Annotated[str | None, _filter_option("--topic", metavar="NAME", help="Only messages sent to this topic.")]
Tag = Annotated[str | None, _filter_option("--tag", "-t", help="Only messages with one of these tags: 'A || B'.")]
Since = Annotated[
    str | None,
    _filter_option(
        "--since",
        metavar="TIME",
        help="Only messages given up at or after this time: 2026-07-14T09:30, or 2h for two hours ago.",
    ),
]
Until = Annotated[
    str | None, _filter_option("--until", metavar="TIME", help="Only messages given up before this time.")
]
ExceptionPart = Annotated[
    str | None,
    _filter_option("--exception", metavar="TEXT", help="Only messages whose exception name contains this text."),
]
Ids = Annotated[
    list[str] | None, _filter_option("--id", metavar="MESSAGE_ID", help="Only this message; may be repeated.")
]
Where = Annotated[
    str | None, _filter_option("--where", metavar="SQL", help="An SQL expression over the columns of mqdb.dlq.")
]


def filter_of(
    group: str | None,
    topic: str | None,
    tag: str | None,
    since: str | None,
    until: str | None,
    exception: str | None,
    ids: list[str] | None,
    where: str | None,
) -> "DeadLetterFilter":
    """The filter that these options describe. Raises NameInvalid, ParameterInvalid or TagExpressionInvalid."""
    from mqdb.common.group import check_group_name
    from mqdb.common.unique_id import parse_unique_id
    from mqdb_client import DeadLetterFilter

    if group is not None:
        check_group_name(group)
    return DeadLetterFilter(
        group,
        topic,
        tag,
        None if since is None else parse_time("since", since),
        None if until is None else parse_time("until", until),
        exception,
        tuple(map(parse_unique_id, ids or ())),
        where,
    )


def shown_broker(admin: "Admin", name: str) -> str | None:
    """The name of a broker; None if there is only one."""
    return name if has_several(admin) else None
