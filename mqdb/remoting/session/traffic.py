"""Traffic: the counts of a front's requests and connections, in plain numbers.

The loop writes; the metrics are rendered in another thread. A request counts when it ends. Clients can send any code,
so unknown codes count together, as OTHER.
"""

from typing import Final

from mqdb.errors import ResponseCode
from mqdb.remoting.wire.codes import RequestCode
from mqdb.web.durations import Durations

#: No code of RocketMQ.
OTHER: Final = -1

_REQUESTS: Final = frozenset(map(int, RequestCode))
_RESPONSES: Final = frozenset(map(int, ResponseCode))


class Requests:
    """The requests of one code that have ended."""

    __slots__ = ("durations", "responses")

    def __init__(self) -> None:
        #: The number of requests by code, OTHER included. A oneway request counts with the code that nobody was told.
        self.responses: dict[int, int] = {}
        #: From when it was read until its answer was written; how long a pull was held is a part of it.
        self.durations = Durations()


class Traffic:
    """The counts of one front since it was made."""

    def __init__(self) -> None:
        #: By the codes of requests, OTHER included.
        self.requests: dict[int, Requests] = {}
        #: Of frames, so without what TLS adds.
        self.received_bytes = 0
        self.sent_bytes = 0
        #: Connections that are open now.
        self.connections = 0
        self.accepted = 0
        #: For there were too many.
        self.refused = 0
        #: Closed because they did not speak the protocol.
        self.invalid = 0
        #: Pulls that wait for messages now.
        self.held_pulls = 0
        #: Pops that wait for messages now.
        self.waiting = 0

    def ended(self, request: int, response: int, seconds: float) -> None:
        """Count a request by its code and that of its answer. It takes less than a microsecond."""
        requests = self.requests.get(request)
        if requests is None:
            requests = self.requests.setdefault(request if request in _REQUESTS else OTHER, Requests())
        requests.durations.add(seconds)
        responses = requests.responses
        if response not in responses:
            response = response if response in _RESPONSES else OTHER
            responses.setdefault(response, 0)
        responses[response] += 1
