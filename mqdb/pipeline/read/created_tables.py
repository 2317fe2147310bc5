"""CREATE TABLE name USING mqdb: Spark requests the table's columns if the statement does not list them.

Spark 4.3 stores the options of such a table in its catalog, but does not pass them to a Python data source when the
table is read or written. So each statement has to give its options by WITH, and a table needs only those that choose
columns.
"""

from collections.abc import Mapping
from typing import Final

from mqdb.pipeline.errors import OptionInvalid

#: Spark adds this only to the options of a table, with others that describe the table.
_PROVIDER: Final = "provider"

#: Source: TableCatalog.PROP_* of Spark 4.3.
_OF_TABLE: Final = frozenset(
    {"collation", "comment", "external", "is_managed_location", "location", "owner", _PROVIDER, "table_type"}
)

#: Spark passes each option twice, once with this prefix.
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
            reason = (
                "Spark does not store the options of a table; give them in each statement: FROM name WITH (url = '...')"
            )
            raise OptionInvalid(name, None, reason)
    return given
