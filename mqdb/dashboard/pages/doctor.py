"""Doctor: the problems of the broker and their remedies, as in `mqdb doctor`."""

from typing import Final

from starlette.responses import Response

from mqdb import __version__
from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.visit import Visit
from mqdb.errors import MqdbError
from mqdb_client import FindingStatus, Versions


def doctor(visit: Visit) -> Response:
    """The frame of the page. The checks take a moment, so their findings are loaded after the page."""
    return visit.page("doctor.html")


def findings(visit: Visit) -> Response:
    """The findings of all checks, worst first."""
    order = list(FindingStatus)
    found = sorted(visit.broker.doctor.examine(visit.brokers.thresholds), key=lambda each: order.index(each.status))
    return visit.page("doctor_findings.html", findings=found, mqdb=__version__, versions=_versions(visit))


def _versions(visit: Visit) -> Versions | None:
    try:
        return visit.broker.versions()
    except MqdbError:  # a finding has the reason
        return None


PAGES: Final = (Page("doctor", doctor), Page("doctor/findings", findings))
