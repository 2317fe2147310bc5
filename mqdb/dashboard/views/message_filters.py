"""The message filter in a form: by tags, by SQL92 or by a key."""

from mqdb.dashboard.fields import Fields
from mqdb.errors import ParameterInvalid
from mqdb_client import MessageSelector


def selector_of(query: Fields) -> MessageSelector | None:
    """The selector from the fields `tag` and `sql`; None if both fields are empty.

    Raises ParameterInvalid if more than one of `key`, `tag` and `sql` is given, and SelectorSyntaxError for bad syntax.
    """
    key, tag, sql = query.text("key"), query.text("tag"), query.text("sql")
    if sum(each is not None for each in (key, tag, sql)) > 1:
        raise ParameterInvalid("key", key or tag or sql, "search by a key, by tags or by SQL92, one of them at a time")
    if sql is not None:
        return MessageSelector.by_sql(sql)
    return MessageSelector.by_tag(tag) if tag is not None else None
