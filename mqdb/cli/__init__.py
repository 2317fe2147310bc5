"""The command line: `mqdb ...` and `python -m mqdb ...`. No other part of mqdb may import mqdb_client.

app, options          all commands, and the options of each
serve, web, remoting, grpc, worker   processes that serve
send, consume         messages in and out: records, lines, sender, sharing, delivery_time; formats
topic, message, message_trace, group, group_offset, consumer, dlq   what there is
delay, timer, cron, transaction, selector, acl, operation, doctor   and what happens to it
migrate, config, version, database   the schema, the settings, versions, the DSN
bench, demo, spark                   measuring, trying, jobs
console, terminal, rows, logs, confirm, psql      what is printed, and asked
times, message_ids, offset_target                 values that are given
"""

import signal
import sys
from types import FrameType
from typing import Final, NoReturn

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """The console entry point. It exits the process with the code of the command."""
    try:
        # Imported here, not at the top: worker processes of the benchmark import this package without needing these
        # modules.
        from mqdb.cli.app import run
    except KeyboardInterrupt:
        # The imports take a third of a second, and Ctrl-C during them is not an error either.
        sys.exit(128 + signal.SIGINT)
    for number in _STOP_SIGNALS:
        # A background job of a shell ignores Ctrl-C, and has to keep ignoring it.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    sys.exit(run(sys.argv[1:]))


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    """Shut down in order: consumers leave their group, and the demo removes its directory.

    A second signal ends the process at once.
    """
    for each in _STOP_SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)
