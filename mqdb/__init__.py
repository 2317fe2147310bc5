"""mqdb: a message broker that lives in PostgreSQL and behaves like Apache RocketMQ.

The broker's side: tables, verbs, services and the command line. Programs that send and receive
import `mqdb_client`. ARCHITECTURE.md follows one message through these modules.
"""

__version__ = "0.1.0"
