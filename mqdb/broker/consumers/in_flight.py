"""Messages in flight are read again, by their places, to be delivered again, sent back, or given up."""

import logging
from collections.abc import Sequence

from sqlalchemy import Connection

from mqdb.broker.consumers.pull import PullRequest, pull
from mqdb.common.received_message import ReceivedMessage

logger = logging.getLogger(__name__)


def read_in_flight(
    connection: Connection, group: str, requests: Sequence[PullRequest]
) -> dict[PullRequest, ReceivedMessage]:
    """The message of each request. Messages that retention has dropped are left out, with a warning."""
    results, _ = pull(connection, requests, limit=1)
    found = {result.request: result.messages[0] for result in results if result.messages}
    for request in requests:
        if request not in found:
            fields = {"group": group, "queue": str(request.queue), "offset": request.offset}
            sentence = "retention dropped a message in flight of group %(group)s: offset %(offset)s of queue %(queue)s"
            logger.warning(sentence, fields, extra=fields)
    return found
