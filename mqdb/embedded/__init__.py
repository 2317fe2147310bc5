"""Embedded PostgreSQL: mqdb's own server, for machines without one. It runs on Linux and macOS.

The programs come from a wheel or from the machine (`find_postgres`), and are never downloaded. `EmbeddedPostgres` owns
a server in a home directory, which ends with its process or waits for the next owner; `open_or_attach` lets several
processes share one home, and lets an attached process take over when the owner is gone; `attach` finds a server that
another process runs.

    supervisor, sharing, starting      the owner; several processes in one home; the mark of a start
    home, cluster, process, launcher   directories; data; the server program and the script that becomes it
    binaries, account, ports, tuning   which programs, whose, where, with which settings
    leftovers                          what a killed owner leaves behind
"""

from mqdb.embedded.binaries import PostgresBinaries, find_postgres
from mqdb.embedded.home import Home, RunningPostgres, temporary_home
from mqdb.embedded.sharing import SharedPostgres, Supervision, attach, open_or_attach
from mqdb.embedded.starting import mark_starting, wait_while_starting
from mqdb.embedded.supervisor import EmbeddedPostgres

__all__ = [
    "EmbeddedPostgres",
    "Home",
    "RunningPostgres",
    "PostgresBinaries",
    "find_postgres",
    "temporary_home",
    "attach",
    "open_or_attach",
    "SharedPostgres",
    "mark_starting",
    "wait_while_starting",
    "Supervision",
]
