"""Storage: the segments of the log, their sizes, and the reasons for keeping the oldest segment.

The parts are loaded after the page.
"""

from typing import Final

from starlette.responses import Response

from mqdb.dashboard.endpoint import Page
from mqdb.dashboard.visit import Visit

_A_PAGE: Final = 100

#: Checks of the doctor about the log.
_CHECKS: Final = ("retention", "segments", "positions")


def storage(visit: Visit) -> Response:
    """The age of the log, and the retention time."""
    retention = visit.broker.retention
    return visit.page(
        "storage.html",
        log=retention.log(),
        oldest_seconds=retention.oldest_seconds(),
        reserved_seconds=visit.brokers.thresholds.reserved_hours * 3_600,
    )


def findings(visit: Visit) -> Response:
    """The doctor's findings about the log, including the reasons that keep an overdue segment."""
    found = visit.broker.doctor.examine(visit.brokers.thresholds, _CHECKS)
    return visit.page("doctor_findings.html", findings=found)


def segments(visit: Visit) -> Response:
    """The segments of the log, oldest first, with the sizes of their partitions."""
    retention, after = visit.broker.retention, visit.query.number("after")
    last_pos = retention.log().last_pos
    found, sizes = retention.segments(), {each.number: each for each in retention.sizes()}
    rest = [each for each in found if after is None or each.number > after]
    rows = [
        (each, max(min(each.end_pos, last_pos + 1) - each.start_pos, 0), sizes.get(each.number))
        for each in rest[:_A_PAGE]
    ]
    return visit.page(
        "storage_segments.html",
        segments=rows,
        count=len(found),
        has_more=len(rest) > _A_PAGE,
        total=sum(sum(each[1:]) for each in sizes.values()),
    )


PAGES: Final = (Page("storage", storage), Page("storage/findings", findings), Page("storage/segments", segments))
