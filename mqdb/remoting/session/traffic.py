"""Traffic: plain counts of a front's requests and connections.

The event loop writes them; the metrics are rendered in another thread. A request is counted when it ends. Clients can
send any code, so unknown codes are counted together as OTHER.
"""

from typing import Final

from mqdb.errors import ResponseCode
from mqdb.remoting.wire.codes import RequestCode
from mqdb.web.durations import Durations

#: Not a code of RocketMQ.
OTHER: Final = -1

_REQUESTS: Final = frozenset(map(int, RequestCode))
_RESPONSES: Final = frozenset(map(int, ResponseCode))


class Requests:
    """Completed requests with one code."""

    __slots__ = ("durations", "responses")

    def __init__(self) -> None:
        #: Number of requests by response code, including OTHER. A oneway request is counted with the code that was not
        #: sent.
        self.responses: dict[int, int] = {}
        #: From reading the request to writing its answer, including the time that a pull was held.
        self.durations = Durations()


class Traffic:
    """The counts of one front since its creation."""

    def __init__(self) -> None:
        #: By request code, including OTHER.
        self.requests: dict[int, Requests] = {}
        #: Bytes of frames, without the overhead of TLS.
        self.received_bytes = 0
        self.sent_bytes = 0
        #: Connections that are open now.
        self.connections = 0
        self.accepted = 0
        #: Connections refused because there were too many.
        self.refused = 0
        #: Connections closed because they did not use the protocol.
        self.invalid = 0
        #: Pulls that wait for messages now.
        self.held_pulls = 0
        #: Pops that wait for messages now.
        self.waiting = 0

    def ended(self, request: int, response: int, seconds: float) -> None:
        """Count a request by its code and the code of its answer. This takes less than a microsecond."""
        requests = self.requests.get(request)
        if requests is None:
            requests = self.requests.setdefault(request if request in _REQUESTS else OTHER, Requests())
        requests.durations.add(seconds)
        responses = requests.responses
        if response not in responses:
            response = response if response in _RESPONSES else OTHER
            responses.setdefault(response, 0)
        responses[response] += 1
