"""A front for RocketMQ 5's SDKs; run as a script by test_pop_mixed.

    python grpc_front_process.py DSN PORT RENEWED_SECONDS

Prints `ready`. Messages of push consumers are invisible for RENEWED_SECONDS, and are renewed when half of that time is
left.
"""

import os
import signal
import sys
from datetime import timedelta

from mqdb.common.dsn import BrokerDsn
from mqdb.common.http_address import HttpAddress
from mqdb.grpc import consuming, in_flight
from mqdb.grpc.front import GrpcFront


def main(dsn: str, port: str, renewed_seconds: str) -> None:
    renewed = timedelta(seconds=float(renewed_seconds))
    for module in (in_flight, consuming):
        vars(module)["RENEWED"] = renewed
    vars(in_flight)["_LOOK_SECONDS"] = renewed.total_seconds() / 10
    vars(in_flight)["_LEFT_SECONDS"] = renewed.total_seconds() / 2
    front = GrpcFront(BrokerDsn("broker-a", dsn), HttpAddress("127.0.0.1", int(port)))
    front.start()
    os.write(1, b"ready\n")
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
