"""The live parts of the pages of topics and groups, made from samples in the memory of this process."""

import time

from mqdb.dashboard.live.pulse import cause_of_lag, group_pulse, letters_today, span_of, tile_of
from mqdb.dashboard.rendering import render
from mqdb.web.live_figures import LiveFigures
from mqdb.web.time_series import BrokerFigure


def topic_figures(figures: LiveFigures, topic: str) -> tuple[int, str]:
    """The number of the last sample, and a topic's rates as HTML, which is empty if this process has no sample."""
    number, sample = figures.latest
    if sample is None:
        return number, ""
    series, now = figures.series, time.monotonic()
    span = span_of(series.of(BrokerFigure.DISK), now)
    return number, render(
        "topic_figures.html",
        stored=tile_of(series, BrokerFigure.STORED, now, span, topic),
        consumed=tile_of(series, BrokerFigure.CONSUMED, now, span, topic),
    )


def group_figures(figures: LiveFigures, group: str) -> tuple[int, str]:
    """The number of the last sample, and a group's figures as HTML, which is empty if this process has no sample."""
    number, sample = figures.latest
    if sample is None:
        return number, ""
    series, now = figures.series, time.monotonic()
    span = span_of(series.of(BrokerFigure.DISK), now)
    letters, since = letters_today(series, now, group)
    standing = group_pulse(series, group, now)
    return number, render(
        "group_figures.html",
        off=sample.switched_off,
        delivered=tile_of(series, BrokerFigure.DELIVERED, now, span, group),
        lag=tile_of(series, BrokerFigure.LAG, now, span, group),
        retried=tile_of(series, BrokerFigure.RETRIED, now, span, group),
        dead=tile_of(series, BrokerFigure.DEAD, now, span, group),
        standing_now=standing,
        cause=None if standing is None else cause_of_lag(series, standing, now),
        letters=letters,
        letters_since=since,
    )
