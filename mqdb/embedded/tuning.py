"""The settings on the server's command line, each with its reason. All other settings keep their defaults."""

from collections.abc import Mapping

TUNING: Mapping[str, str] = {
    # Every client process has one connection for LISTEN and one for sends or pulls; benchmarks have dozens.
    "max_connections": "200",
    # A statement over all segments locks three tables and their indexes for each segment; in PostgreSQL 18, this
    # setting also limits how many of these locks a session can hold without the shared lock table.
    "max_locks_per_transaction": "256",
    # Enough for data that is written and read again soon. A fast shutdown has to write all of it to disk, and a
    # takeover waits for that; older data is cached by the operating system.
    "shared_buffers": "256MB",
    # Batches of large bodies should not cause a flush in the middle.
    "wal_buffers": "16MB",
    # With the default of 1 GB, a busy broker would write a checkpoint every few seconds, and full pages after each. A
    # larger value would lengthen the recovery after a crash.
    "max_wal_size": "2GB",
    # Log files are reused instead of being created and filled with zeros, even after a quiet hour.
    "min_wal_size": "256MB",
    # The wheels support only pglz, which costs more than it saves: dispatching a backlog right after a checkpoint, when
    # each page that is read gets its hint bits and so a full page image, ran at 206,000/s of CPU with it and at
    # 291,000/s without it, for twice the WAL.
    "wal_compression": "off",
    # Statements take microseconds to milliseconds; compiling one would take longer than running it.
    "jit": "off",
    # The same text on every machine, whichever locale created the cluster.
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "log_line_prefix": "%m [%p] %q%a ",
    # Nothing in mqdb waits long for a lock; if something does, the log should name the holder.
    "log_lock_waits": "on",
    "cluster_name": "mqdb",
}

#: Settings for servers whose data may be lost.
NOT_DURABLE: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off"}


def server_settings(port: int, overrides: Mapping[str, str], *, durable: bool) -> dict[str, str]:
    """The settings of the server: later ones override the tuning.

    The order is tuning, the user's overrides, and the settings that the supervisor needs.
    """
    address = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        # The path of a socket may have at most 107 bytes, and a home directory may be longer.
        "unix_socket_directories": "",
    }
    return {**TUNING, **({} if durable else NOT_DURABLE), **overrides, **address}


def as_arguments(settings: Mapping[str, str]) -> list[str]:
    """Settings as command-line arguments.

    `initdb -c` would store them in the cluster, but PostgreSQL 15 does not support this option.
    """
    return [argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")]
