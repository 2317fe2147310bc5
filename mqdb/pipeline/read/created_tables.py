"""CREATE TABLE name USING mqdb: Spark asks for the columns of the table if the statement does not list columns.

Spark 4.3 stores the options of such a table in its catalog, and does not pass them to a data source in Python when the
table is read or written. So each statement gives its options by WITH, and a table needs only those that choose columns.
"""

from collections.abc import Mapping
from typing import Final

from mqdb.pipeline.errors import OptionInvalid

#: Spark adds it to the options of a table, with others that say what the table is, and to no other options.
_PROVIDER: Final = "provider"

#: Source: TableCatalog.PROP_* of Spark 4.3.
_OF_TABLE: Final = frozenset(
    {"collation", "comment", "external", "is_managed_location", "location", "owner", _PROVIDER, "table_type"}
)

#: Spark passes each option twice, once behind this prefix.
_PREFIX: Final = "option."

_OF_COLUMNS: Final = frozenset({"columns", "includeheaders", "includereservedheaders", "rowformat"})


def is_created_table(options: Mapping[str, str]) -> bool:
    """Whether these are the options of a CREATE TABLE."""
    return any(name.lower() == _PROVIDER for name in options)


def column_options(options: Mapping[str, str]) -> Mapping[str, str]:
    """The options of a CREATE TABLE that choose its columns. Raises OptionInvalid if there are others."""
    given = {
        name: value
        for name, value in options.items()
        if name.lower() not in _OF_TABLE and not name.lower().startswith(_PREFIX)
    }
    for name in given:
        if name.lower() not in _OF_COLUMNS:
            # Without the value, which may be a password.
            reason = "Spark forgets the options of a table; give it in each statement: FROM name WITH (url = '...')"
            raise OptionInvalid(name, None, reason)
    return given
