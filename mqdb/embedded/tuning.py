"""The server's settings, given on its command line, each with its reason. Everything else keeps its default."""

from collections.abc import Mapping

TUNING: Mapping[str, str] = {
    # Every client process holds a connection for LISTEN and one to send or pull, benchmarks dozens.
    "max_connections": "200",
    # A statement over all segments locks three tables and their indexes per segment; PostgreSQL 18 also takes
    # from this how many of these locks a session can hold without the shared lock table.
    "max_locks_per_transaction": "256",
    # Enough for what is written and soon read again. A fast shutdown has to write it all to disk, and a takeover
    # waits for that; what is older the operating system caches.
    "shared_buffers": "256MB",
    # Batches of large bodies should not flush in the middle.
    "wal_buffers": "16MB",
    # With the default 1 GB a busy broker would write a checkpoint every few seconds, and full pages after each.
    # More would lengthen the recovery after a crash.
    "max_wal_size": "2GB",
    # Log files are reused rather than created and filled with zeros, also after a quiet hour.
    "min_wal_size": "256MB",
    # The wheels know only pglz, and it costs more than it saves: dispatching a backlog right after a checkpoint,
    # when each page it reads gets its hint bits and so a full page image, ran at 206,000/s of CPU with it and at
    # 291,000/s without, for twice the WAL.
    "wal_compression": "off",
    # Statements last microseconds to milliseconds; compiling one would take longer than running it.
    "jit": "off",
    # The same text on every machine, whoever made the cluster.
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "log_line_prefix": "%m [%p] %q%a ",
    # Nothing in mqdb waits long for a lock; where something does, the log should say for whom.
    "log_lock_waits": "on",
    "cluster_name": "mqdb",
}

#: For servers with data that may be lost.
NOT_DURABLE: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off"}


def server_settings(port: int, overrides: Mapping[str, str], *, durable: bool) -> dict[str, str]:
    """Later ones win: tuning, the user's overrides, and what the supervisor itself relies on."""
    address = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        # A socket's path may have 107 bytes at most, a home directory may be longer.
        "unix_socket_directories": "",
    }
    return {**TUNING, **({} if durable else NOT_DURABLE), **overrides, **address}


def as_arguments(settings: Mapping[str, str]) -> list[str]:
    """`initdb -c` would be kept in the cluster, but PostgreSQL 15 does not know it."""
    return [argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")]
