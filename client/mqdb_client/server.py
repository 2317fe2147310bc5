"""A broker in this process: the same as `mqdb serve`, on a PostgreSQL of its own or on a given one."""

from mqdb.server import Server

__all__ = ["Server"]
