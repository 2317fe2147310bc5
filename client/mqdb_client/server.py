"""A broker in this process: what `mqdb serve` runs, on a PostgreSQL of its own or on a given one."""

from mqdb.server import Server

__all__ = ["Server"]
