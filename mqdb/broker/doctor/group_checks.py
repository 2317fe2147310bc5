"""Checks of consumer groups: lag, subscriptions, owners of queues, dead letters."""

import shlex
from typing import Any, Final

from sqlalchemy import Connection

from mqdb.broker.doctor.finding import (
    HOUR_SECONDS,
    Checks,
    DoctorCheck,
    DoctorThresholds,
    FindingStatus,
    Observation,
    fine,
    one_each,
    rows,
    span,
)
from mqdb.selector import compile_selector
from mqdb.selector.subscription import ExpressionType
from mqdb.selector.tags import parse_tag_expression
from mqdb.store.consumers.groups import list_groups
from mqdb.store.filters.matches import count

WARN: Final = FindingStatus.WARN


def _lag(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    groups = list_groups(connection)
    left = [each for each in groups if not each.members and each.lag_seconds > thresholds.lag_warn_seconds]
    return one_each(
        left,
        lambda group: Observation(
            WARN,
            f"group {group.group} has no members, but a lag of {group.lag:,} messages or {span(group.lag_seconds)}",
            f"mqdb group show {shlex.quote(group.group)}  # then start its consumers, or delete it",
            {"group": group.group, "lag_messages": group.lag, "lag_seconds": round(group.lag_seconds, 1)},
        ),
    ) or fine(f"{len(groups):,} groups; each group with a lag has members", groups=len(groups))


def _subscriptions(connection: Connection, _thresholds: DoctorThresholds) -> list[Observation]:
    # A retry topic is created again when it is needed.
    missing = rows(
        connection,
        """SELECT g.group_name AS "group", s.topic
           FROM mqdb.subscription s JOIN mqdb.subscription_group g USING (group_id)
           WHERE NOT EXISTS (SELECT FROM mqdb.topic t WHERE t.topic = s.topic)
             AND NOT starts_with(s.topic, mqdb.retry_prefix())
           ORDER BY g.group_name, s.topic""",
    )
    return one_each(
        missing,
        lambda each: Observation(
            WARN,
            f"group {each.group} subscribes to topic {each.topic}, which does not exist",
            f"mqdb topic create {shlex.quote(each.topic)}  # or correct the name",
            {"group": each.group, "topic": each.topic},
        ),
    ) or fine("all topics to which groups subscribe exist")


def _filters(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    filtered = rows(
        connection,
        """SELECT s.topic, s.expression_type, s.expression, min(g.group_name) AS "group",
                  array_agg(DISTINCT q.queue_key) AS queue_keys
           FROM mqdb.subscription s JOIN mqdb.subscription_group g USING (group_id)
           JOIN mqdb.topic t ON t.topic = s.topic JOIN mqdb.queue q ON q.topic_id = t.topic_id
           WHERE s.expression <> '*' AND NOT starts_with(s.topic, mqdb.retry_prefix())
           GROUP BY s.topic, s.expression_type, s.expression ORDER BY 4, 1""",
    )

    # One statement per filter, because an SQL92 condition is part of its text.
    def lets_none_pass(each: Any) -> bool:
        is_tags = each.expression_type == ExpressionType.TAG
        wanted = parse_tag_expression(each.expression) if is_tags else compile_selector(each.expression)
        found = count(connection, each.queue_keys, wanted, thresholds.filter_newest_messages)
        return found.examined == thresholds.filter_newest_messages and not found.matched

    return one_each(
        [each for each in filtered if lets_none_pass(each)],
        lambda each: Observation(
            WARN,
            f"group {each.group} filters topic {each.topic} with {each.expression!r}, which matches none of its "
            f"newest {thresholds.filter_newest_messages:,} messages",
            f"mqdb group show {shlex.quote(each.group)}  # and mqdb message find {shlex.quote(each.topic)}",
            {"group": each.group, "topic": each.topic, "expression": each.expression},
        ),
    ) or fine(
        f"{len(filtered):,} filters, each of which matches messages or has too few messages to judge",
        filters=len(filtered),
    )


def _owners(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    # A group that was assigned queues by name has no subscription.
    unowned = rows(
        connection,
        """WITH attended AS MATERIALIZED (
               SELECT g.group_id, g.group_name FROM mqdb.subscription_group g
               WHERE g.consume_mode = 'PULL' AND EXISTS (SELECT FROM mqdb.client c
                             WHERE c.group_name = g.group_name AND c.kind = 'CONSUMER'
                               AND c.message_model = 'CLUSTERING'
                               AND c.registered_at < mqdb.now() - make_interval(secs => %(seconds)s))
           )
           SELECT a.group_name AS "group", count(*) AS queues, min(t.topic) AS topic, min(o.owner) AS owner,
                  max(extract(epoch FROM mqdb.now() - o.updated_at))::float AS seconds
           FROM attended a
           JOIN mqdb.consumer_offset o USING (group_id)
           JOIN mqdb.queue q USING (queue_key)
           JOIN mqdb.topic t USING (topic_id)
           JOIN mqdb.subscription s ON s.group_id = o.group_id AND s.topic = t.topic
           WHERE o.updated_at < mqdb.now() - make_interval(secs => %(seconds)s)
             AND t.perm & 4 <> 0 AND q.queue_id < t.read_queue_nums
             AND NOT EXISTS (SELECT FROM mqdb.client c
                             WHERE c.group_name = a.group_name AND c.kind = 'CONSUMER' AND c.client_id = o.owner)
           GROUP BY a.group_name ORDER BY a.group_name""",
        seconds=thresholds.unowned_warn_seconds,
    )

    def observe(each: Any) -> Observation:
        whose = f", some of which belong to {each.owner}, which is not a member" if each.owner else ""
        return Observation(
            WARN,
            f"group {each.group} has members, but none of them has read {each.queues:,} queues for "
            f"{span(each.seconds)}, including queues of {each.topic}{whose}",
            f"mqdb group show {shlex.quote(each.group)}  # and restart a member",
            {
                "group": each.group,
                "queues": each.queues,
                "topic": each.topic,
                "owner": each.owner,
                "unowned_seconds": round(each.seconds, 1),
            },
        )

    return one_each(unowned, observe) or fine("each queue that groups with members read has an owner")


def _dead_letters(connection: Connection, thresholds: DoctorThresholds) -> list[Observation]:
    # Two lookups in the log per queue, of its first and its last letter. LIMIT makes them use the index.
    found = rows(
        connection,
        """WITH dlq AS MATERIALIZED (
               SELECT right(t.topic, -length(mqdb.dlq_prefix())) AS name, e.queue_key, e.min_offset, e.max_offset
               FROM mqdb.topic t JOIN mqdb.every_queue_end e USING (topic_id)
               WHERE starts_with(t.topic, mqdb.dlq_prefix())
           )
           SELECT d.name AS "group", sum(d.max_offset - d.min_offset)::bigint AS letters,
                  extract(epoch FROM mqdb.now() - min(oldest.store_time))::float AS oldest_seconds,
                  extract(epoch FROM mqdb.now() - max(newest.store_time))::float AS newest_seconds,
                  (SELECT count(DISTINCT r.log_pos) FROM mqdb.redrive_result r
                   WHERE r.group_name = d.name AND r.status = 'REDRIVEN'
                     AND r.log_pos >= min(oldest.log_pos)) AS redriven
           FROM dlq d
           CROSS JOIN LATERAL (
               SELECT r.log_pos, r.store_time FROM mqdb.entries(d.queue_key, d.min_offset, d.min_offset + 1) n
               CROSS JOIN LATERAL (SELECT cl.log_pos, cl.store_time FROM mqdb.commit_log cl
                                   WHERE cl.log_pos = n.log_pos ORDER BY cl.log_pos LIMIT 1) r LIMIT 1) AS oldest
           CROSS JOIN LATERAL (
               SELECT r.store_time FROM mqdb.entries(d.queue_key, d.max_offset - 1, d.max_offset) n
               CROSS JOIN LATERAL (SELECT cl.store_time FROM mqdb.commit_log cl
                                   WHERE cl.log_pos = n.log_pos ORDER BY cl.log_pos LIMIT 1) r LIMIT 1) AS newest
           WHERE d.max_offset > d.min_offset
           GROUP BY d.name ORDER BY d.name""",
    )
    last_seconds = thresholds.letters_warn_share * thresholds.reserved_hours * HOUR_SECONDS
    waiting = [each for each in found if each.letters > each.redriven]
    bad = [
        each
        for each in waiting
        if each.newest_seconds < thresholds.letters_recent_seconds or each.oldest_seconds > last_seconds
    ]

    def observe(each: Any) -> Observation:
        is_late = each.oldest_seconds > last_seconds
        goes = f", and is dropped after {thresholds.reserved_hours:g} h" if is_late else ""
        group = shlex.quote(each.group)
        return Observation(
            WARN,
            f"group {each.group} has {each.letters - each.redriven:,} dead letters that were not redriven; the "
            f"newest is {span(each.newest_seconds)} old, the oldest {span(each.oldest_seconds)}{goes}",
            f"mqdb dlq redrive {group} --dry-run" if is_late else f"mqdb dlq list {group}",
            {
                "group": each.group,
                "letters": each.letters,
                "redriven": each.redriven,
                "newest_seconds": round(each.newest_seconds, 1),
                "oldest_seconds": round(each.oldest_seconds, 1),
            },
        )

    letters = sum(each.letters - each.redriven for each in waiting)
    return one_each(bad, observe) or fine(f"{letters:,} dead letters are waiting, but none is new", letters=letters)


CHECKS: Final[Checks] = {
    DoctorCheck(
        "lag",
        "groups with messages to consume but without members",
        "WARN if the oldest message is older than {lag_warn_seconds} s",
        "start the consumers, or delete the group",
        is_partial=True,
    ): _lag,
    DoctorCheck(
        "subscriptions",
        "topics to which groups subscribe",
        "WARN if a topic does not exist",
        "create the topic, or correct its name",
        needs_owner=True,
    ): _subscriptions,
    DoctorCheck(
        "filters",
        "filters of groups on topics, by tags or SQL92",
        "WARN if a filter matches none of the newest {filter_newest_messages:,} messages of the topic",
        "`mqdb selector explain`; correct the filter or the producers",
        needs_owner=True,
    ): _filters,
    DoctorCheck(
        "owners",
        "subscribed queues that no member of a group with members reads",
        "WARN above {unowned_warn_seconds} s",
        "inspect the group, restart a member, report the problem",
        needs_owner=True,
    ): _owners,
    DoctorCheck(
        "dead-letters",
        "dead letters that were not redriven",
        "WARN if the newest is younger than {letters_recent_seconds} s, or the oldest older than "
        "{letters_warn_share:.0%} of {reserved_hours} h",
        "`mqdb dlq list`, `mqdb dlq redrive` before retention drops them",
        needs_owner=True,
    ): _dead_letters,
}
