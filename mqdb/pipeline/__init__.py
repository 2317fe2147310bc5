"""Topics on Spark: read and written by PySpark, and the jobs that stand on that.

Needs the extra: pip install "mqdb[spark]". This page only lists what there is, and imports a thing when it is used: so
the command line can look here without Spark. No module bears the name of a function of this page: its import would
replace the function. Errors are in `mqdb.pipeline.errors`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mqdb.pipeline.archiving import archive
    from mqdb.pipeline.dead_letter_counting import dlq_report
    from mqdb.pipeline.jdbc import read_jdbc
    from mqdb.pipeline.local_session import register, session
    from mqdb.pipeline.replaying import Origin, replay
    from mqdb.pipeline.statistics import stats

__all__ = ["session", "register", "read_jdbc", "archive", "replay", "Origin", "dlq_report", "stats"]

_MODULES: Final = {
    "session": "local_session",
    "register": "local_session",
    "read_jdbc": "jdbc",
    "archive": "archiving",
    "replay": "replaying",
    "Origin": "replaying",
    "dlq_report": "dead_letter_counting",
    "stats": "statistics",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
