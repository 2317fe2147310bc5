"""A sender that kills itself; run as a script by test_dispatcher_killed.

    python killed_sender_process.py DSN before|in|after

Sends a message to topic `orders` in a transaction, and is killed before the commit, after sending the COMMIT without
reading the answer, or after the commit.
"""

import os
import signal
import sys

import psycopg


def main(dsn: str, moment: str) -> None:
    connection = psycopg.connect(dsn, application_name="killed sender")
    connection.execute("SELECT mqdb.send('orders', 'text'::text)")
    if moment == "in":
        connection.pgconn.send_query(b"COMMIT")
        while connection.pgconn.flush():
            pass
    elif moment == "after":
        connection.commit()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
