"""Overview: the pulse of the broker, its health, dead letters and lags. The parts that ask the database come later."""

from typing import Final

from markupsafe import Markup
from starlette.responses import Response

from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.visit import Visit
from mqdb_client import FindingStatus

#: Lines of a list on this page.
_MOST: Final = 10

#: Checks whose things have a list here.
_LISTED: Final = frozenset({"lag", "dead-letters"})


def overview(visit: Visit) -> Response:
    """The frame with the pulse, if this process samples the broker; it asks the database nothing."""
    return visit.page("overview.html", pulse=Markup(visit.brokers.pulse.render(visit.broker_name)[1]))


def health(visit: Visit) -> Response:
    """The problems that the doctor finds, and whether the broker is a standby.

    Problems that have their own list below are only named by their checks.
    """
    found = visit.broker.doctor.examine(visit.brokers.thresholds)
    wrong = [each for each in found if each.status not in (FindingStatus.OK, FindingStatus.INFO)]
    return visit.page(
        "overview_health.html",
        findings=[each for each in wrong if each.check not in _LISTED],
        listed=sorted({each.check for each in wrong if each.check in _LISTED}),
        checks=len(visit.broker.doctor.checks()),
        standby=next((each.seen for each in found if each.figures.get("is_standby") and each not in wrong), None),
    )


def attention(visit: Visit) -> Response:
    """Groups with dead letters, and groups that lag, unless the pulse shows these."""
    broker = visit.broker
    has_pulse = visit.brokers.figures.latest[1] is not None
    groups = [] if has_pulse else broker.groups.list()
    lagging = sorted((each for each in groups if each.lag), key=lambda each: -each.lag_seconds)
    letters = sorted(broker.dead_letters.groups(), key=lambda each: -each.letters)
    return visit.page(
        "overview_attention.html",
        has_pulse=has_pulse,
        groups=len(groups),
        lagging=lagging[:_MOST],
        lagging_more=max(len(lagging) - _MOST, 0),
        letters=letters[:_MOST],
        letters_more=max(len(letters) - _MOST, 0),
    )


PAGES: Final = (Page("", overview), Page("health", health), Page("attention", attention))
