"""A broker in this process: the same as `mqdb serve`, on its own PostgreSQL or on a given PostgreSQL."""

from mqdb.server import Server

__all__ = ["Server"]
