"""Overview: what needs attention, and how fast records come. The parts are loaded after the page."""

from typing import Final

from starlette.responses import Response

from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.visit import Visit
from mqdb_client import FindingStatus

#: Lines of a list on this page.
_MOST: Final = 10

#: Checks whose things have a list here.
_LISTED: Final = frozenset({"lag", "dead-letters"})


def overview(visit: Visit) -> Response:
    """The frame; it asks the database nothing."""
    return visit.page("overview.html")


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
    """Groups that lag, and groups with dead letters."""
    broker = visit.broker
    groups = broker.groups.list()
    lagging = sorted((each for each in groups if each.lag), key=lambda each: -each.lag_seconds)
    letters = sorted(broker.dead_letters.groups(), key=lambda each: -each.letters)
    return visit.page(
        "overview_attention.html",
        groups=len(groups),
        lagging=lagging[:_MOST],
        lagging_more=max(len(lagging) - _MOST, 0),
        letters=letters[:_MOST],
        letters_more=max(len(letters) - _MOST, 0),
    )


def rate(visit: Visit) -> Response:
    """Records per second since the last look, which the request brings along."""
    log = visit.broker.retention.log()
    now = log.now.timestamp()
    try:
        last_pos, last_at = int(visit.query.text("pos") or ""), float(visit.query.text("at") or "")
    except ValueError:
        per_second = None
    else:
        per_second = max(log.last_pos - last_pos, 0) / (now - last_at) if now > last_at else None
    return visit.page("overview_rate.html", per_second=per_second, pos=log.last_pos, at=f"{now:.6f}", now=log.now)


PAGES: Final = (Page("", overview), Page("health", health), Page("attention", attention), Page("rate", rate))
