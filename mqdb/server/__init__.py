"""A broker in a process: a PostgreSQL server, its upgraded schema, and the services.

server            `Server`, which starts and stops them
service_configs   what the settings mean for each service
"""

from mqdb.server.server import Server, WebParts

__all__ = ["Server", "WebParts"]
