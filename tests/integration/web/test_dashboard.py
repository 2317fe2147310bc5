"""The pages of the dashboard: their contents, their actions, and the actors of changes."""

from datetime import timedelta
from html import unescape
from unittest.mock import patch

import pytest
from sqlalchemy import Connection

from mqdb import __version__
from mqdb.broker.doctor import examine
from mqdb.dashboard.pages import messages
from mqdb.store.engine import create_engine
from mqdb.store.migrations import head
from mqdb_client import Admin, Message, Producer, SendResult
from tests.fixtures.broker import dispatch_all
from tests.fixtures.dashboard import SCRIPT, Site, Visitor, paths, serving_alone
from tests.fixtures.dead_letters import bury, create_group
from tests.fixtures.postgres import Database, query, with_parts
from tests.fixtures.timers import timer

B = "/b/broker-a/"
BILLING = B + "dead-letters/billing"
OFFSETS = B + "groups/billing/topics/orders"


def test_every_page_is_there_and_no_script_of_a_stranger_is_in_it(site: Site, ann: Visitor) -> None:
    for path in paths(site):
        reply = ann.get(path)
        assert reply.status in (200, 303), (path, reply.body)
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "same-origin"
        assert reply.headers["cache-control"] == "no-store"
        # Shown as text, never as markup.
        assert SCRIPT not in reply.body, path
        for markup in ("<b>", " style=", " onclick=", 'src="http', 'href="http'):
            assert markup not in reply.body, (path, markup)


def test_texts_of_strangers_are_shown_as_they_are(site: Site, ann: Visitor) -> None:
    assert SCRIPT in ann.page(B + f"messages/{site.shop.message}?body=1")
    assert SCRIPT in ann.page(f"{BILLING}/{site.shop.letters[0]}?edit=1")
    assert "00 ff" in ann.page(f"{BILLING}/{site.shop.letters[3]}?body=1")
    assert "odd <script>" in ann.page(BILLING)


def test_bodies_are_shown_on_demand_only(site: Site, ann: Visitor) -> None:
    orders = B + "topics/orders/messages"

    assert "first" not in ann.page(orders).partition("<tbody>")[2]
    assert "first" in ann.page(orders + "?bodies=1").partition("<tbody>")[2]
    assert "a body" not in ann.page(f"{BILLING}/{site.shop.letters[0]}")
    assert "alert('x')</pre>" not in ann.page(B + f"messages/{site.shop.message}")


def test_the_trace_of_a_message_says_what_became_of_it(site: Site, ann: Visitor) -> None:
    assert "WAITING for orders, due" in ann.page(f"{B}messages/{site.shop.timers[1]}/trace")
    assert "%DLQ%billing" in ann.page(f"{B}messages/{site.shop.letters[0]}/trace")


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/b/nobody/topics", 404, "there is no broker 'nobody' here"),
        (B + "nowhere", 404, "There is no such page"),
        (B + "topics/nowhere/details", 404, "topic 'nowhere' does not exist"),
        (B + "topics/nowhere/messages", 404, "topic 'nowhere' does not exist"),
        (B + "topics/orders/messages?queue=7", 404, "queue"),
        (B + "topics/orders/messages?offset=7", 400, "choose a queue"),
        (B + "topics/orders/messages?queue=-1", 400, "write a whole number"),
        (B + "topics/orders/messages?time=soon", 400, "write a time in UTC"),
        (B + "topics/orders/messages?before=1", 400, "give 2 offsets"),
        (B + "topics/orders/messages?before=1,x", 400, "not a list of offsets"),
        (B + "topics/orders/messages?sql=a%20%3D", 400, "a ="),
        (B + "topics/orders/messages?tag=a&key=b", 400, "one of them at a time"),
        (B + "topics/orders/messages?key=%00", 400, "cannot store"),
        (B + "messages/xyz", 400, "xyz"),
        (B + "messages/0A0B0C0D1E2F00000000000000000001", 404, "there is no message 0A0B"),
        (B + "messages", 400, "write the unique id"),
        (B + "groups/nobody", 404, "nobody"),
        (B + "groups/nobody/topics", 404, "nobody"),
        (BILLING + "/0A0B0C0D1E2F00000000000000000001", 404, "dead letter"),
    ],
)
def test_what_is_not_there_or_makes_no_sense_is_said(ann: Visitor, path: str, status: int, words: str) -> None:
    reply = ann.get(path)

    assert reply.status == status
    assert words in unescape(reply.body)


def test_a_topic_is_made_and_its_maker_is_known(site: Site, ann: Visitor) -> None:
    reply = ann.act(B + "new-topic", name="made", queues="3")

    assert (reply.status, reply.location) == (303, B + "topics/made")
    assert "Topic made is created." in ann.page(reply.location)
    assert "Topic made is created." not in ann.page(reply.location)
    with Admin(site.database.dsn) as admin:
        (done,) = admin.operations.list(topic="made")
    assert (done.verb, done.actor) == ("topic.create", "dashboard")
    assert "topic.create" in ann.page(B + "operations?topic=made&actor=dashboard")
    assert "topic.create" not in ann.page(B + "operations?topic=made&actor=somebody")
    assert ann.act(B + "new-topic", name="no/topic", queues="3").status == 400


def test_offsets_are_reset_after_a_look_at_what_that_changes(site: Site, ann: Visitor) -> None:
    def next_offsets() -> list[int]:
        with Admin(site.database.dsn) as admin:
            return [each.next_offset for each in admin.offsets.show("billing", "orders")]

    plan = ann.act(OFFSETS, to="earliest", reason="once more")
    assert plan.status == 200
    assert "2 messages come again, 0 are skipped" in plan.body
    assert next_offsets() == [1, 1]

    done = ann.act(OFFSETS, to="earliest", reason="once more", do="1")
    assert (done.status, done.location) == (303, OFFSETS)
    assert next_offsets() == [0, 0]
    ann.act(OFFSETS, to="2", queue="0", do="1")
    assert next_offsets() == [2, 0]
    with Admin(site.database.dsn) as admin:
        found = admin.operations.list(group="billing", actor="dashboard")
    assert ("offset.reset", "once more") in [(each.verb, each.reason) for each in found]
    assert ann.act(OFFSETS, to="some day", do="1").status == 400
    assert ann.act(OFFSETS, to="99", do="1").status == 400


def test_chosen_letters_are_redriven_after_a_dry_run(site: Site, ann: Visitor) -> None:
    first, _, third, binary = site.shop.letters
    before = len(sent(site))

    plan = ann.act(BILLING, ("id", first), ("id", binary))
    assert "2 of 2 would go to group billing" in plan.body
    assert len(sent(site)) == before

    done = ann.post(BILLING, [("form_token", plan.form_token), ("id", first), ("id", binary), ("do", "1")])
    assert "2 of 2 are on the way to group billing" in done.body
    assert sent(site)[before:] == [f"a body {SCRIPT}".encode(), b"\x00\xff"]

    again = ann.act(BILLING, ("id", first), do="1")
    assert "redriven before" in again.body
    ann.act(BILLING, ("id", first), do="1", again="1")
    assert len(sent(site)) == before + 3
    elsewhere = ann.act(BILLING, ("id", third), to_topic="orders", do="1")
    assert "on the way to topic orders" in elsewhere.body
    assert ann.act(BILLING, do="1").status == 400
    assert ann.act(BILLING, ("id", first), to_topic="nowhere", do="1", again="1").status == 404
    with Admin(site.database.dsn) as admin:
        assert {each.actor for each in admin.operations.list(group="billing") if each.verb == "dlq.redrive"} == {
            "dashboard"
        }
        assert "by dashboard" in ann.page(f"{BILLING}/{first}")


def sent(site: Site) -> list[bytes]:
    """Bodies in the retry topic of group billing, the oldest first."""
    rows = site.database.rows(
        "SELECT body FROM mqdb.commit_log JOIN mqdb.queue USING (queue_key) JOIN mqdb.topic USING (topic_id)"
        " WHERE topic = %s ORDER BY log_pos",
        "%RETRY%billing",
    )
    return [bytes(body) for (body,) in rows]


def test_an_edited_body_is_redriven_with_the_line_ends_of_the_old_one(site: Site, ann: Visitor) -> None:
    second = site.shop.letters[1]
    before = len(sent(site))

    # Line ends as a browser sends them.
    plan = ann.act(BILLING, ("id", second), text="zwei\r\nZeilen ö")
    assert "with the new body" in plan.body
    done = ann.act(BILLING, ("id", second), text="zwei\r\nZeilen ö", do="1")

    assert "with the new body" in done.body
    assert sent(site)[before:] == ["zwei\nZeilen ö".encode()]
    assert "with another body" in ann.page(f"{BILLING}/{second}")
    assert ann.act(BILLING, *(("id", each) for each in site.shop.letters[:2]), text="x", do="1").status == 400


def test_a_text_that_nobody_has_changed_is_no_new_body(site: Site, ann: Visitor) -> None:
    plan = ann.act(BILLING, ("id", site.shop.letters[1]), text="two\r\nlines", again="1")

    assert plan.status == 200
    assert "with the new body" not in plan.body


def test_the_recall_of_a_retry_is_not_offered(site: Site, ann: Visitor) -> None:
    engine = create_engine(site.database.dsn)
    with engine.connect() as connection:
        [retry] = timer(connection, timedelta(hours=1), "retry", topic="%RETRY%billing")
    engine.dispose()

    page = ann.page(B + "scheduled?topic=%25RETRY%25billing")

    assert retry in page
    assert "Recall" not in page


def test_a_message_is_recalled_after_a_question(site: Site, ann: Visitor) -> None:
    first = site.shop.timers[0]
    assert first in ann.page(B + "scheduled")

    question = ann.act(B + "scheduled", id=first, topic="orders")
    assert "will never be delivered" in question.body
    assert first in ann.page(B + "scheduled")

    done = ann.act(B + "scheduled", id=first, topic="orders", do="1")
    assert f"Recall of {first}: RECALLED." in ann.page(done.location)
    with Admin(site.database.dsn) as admin:
        assert [(each.actor, each.object) for each in admin.operations.list() if each.verb == "timer.recall"] == [
            ("dashboard", first)
        ]
    # The other one is still there, and carries the token.
    assert ann.act(B + "scheduled", id="x", topic="orders", do="1").status == 400


def wait_until_dispatched(last: SendResult) -> None:
    """Pages show only dispatched messages, so the append must have placed this message and all before it."""
    assert last.queue_offset is not None


def test_messages_are_paged_back_to_the_first_one(site: Site, ann: Visitor) -> None:
    with Admin(site.database.dsn) as admin, Producer("shop", site.database.dsn) as producer:
        admin.topics.create("long", queues=2)
        for n in range(70):
            sent = producer.send(Message("long", f"m{n}", properties={"n": str(n)}))
        wait_until_dispatched(sent)
    place, seen = B + "topics/long/messages?bodies=1", list[str]()
    while place:
        body = ann.page(place)
        seen += [line.partition(">")[2].partition("<")[0] for line in body.split('<pre class="body"')[1:]]
        link = body.partition('rel="next" href="')[2].partition('"')[0]
        place = link

    assert sorted(seen, key=lambda text: int(text[1:])) == [f"m{n}" for n in range(70)]
    assert seen[0] == "m69"


def test_a_search_says_how_far_it_has_looked_and_goes_on(
    site: Site, ann: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_A_LOOK", 10)
    with Admin(site.database.dsn) as admin, Producer("shop", site.database.dsn) as producer:
        admin.topics.create("searched", queues=1)
        for n in range(45):
            sent = producer.send(Message("searched", f"m{n}", properties={"n": str(n)}))
        wait_until_dispatched(sent)
    first = ann.page(B + "topics/searched/messages?sql=n%3D%270%27")
    assert "Looked at 20 messages, the newest first; older ones are left. 0 of this step match." in first

    body = first
    while 'rel="next"' in body:
        body = ann.page(body.partition('rel="next" href="')[2].partition('"')[0])
    assert "Looked at 45 messages, the newest first, that is all of them. 1 of this step match." in body


def test_a_topic_of_many_queues_is_read_a_queue_at_a_time(
    site: Site, ann: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_MOST_QUEUES", 3)
    with Admin(site.database.dsn) as admin, Producer("shop", site.database.dsn) as producer:
        admin.topics.create("wide", queues=4)
        for n in range(120):
            sent = producer.send(Message("wide", f"m{n}"), sharding_key="the same")
        wait_until_dispatched(sent)
        [queue] = {each.queue.queue_id for each in admin.messages.latest("wide").messages}
    path = B + "topics/wide/messages"

    newest = ann.page(path)
    assert ("choose one" in newest, 'rel="next"' in newest) == (True, False)
    assert "choose a queue, too" in unescape(ann.get(path + "?time=0s").body)
    first = ann.page(f"{path}?queue={queue}&time=0s")
    assert 'title="' in first
    second = ann.page(first.partition('rel="next" href="')[2].partition('"')[0])
    third = ann.page(second.partition('rel="next" href="')[2].partition('"')[0])
    assert [page.count('class="id"') for page in (first, second, third)] == [50, 50, 20]
    assert 'rel="next"' not in third


def test_many_letters_are_paged(site: Site, ann: Visitor) -> None:
    path = B + "dead-letters/other"
    assert "This group has no dead letters" in ann.page(path)
    engine = create_engine(site.database.dsn)
    with engine.connect() as connection:
        for n in range(60):
            bury(connection, f"letter {n}", group="other")
        dispatch_all(connection)
    engine.dispose()
    with Admin(site.database.dsn) as admin:
        ids = [each.message_id for each in admin.messages.latest("%DLQ%other", limit=100).messages]

    first = ann.page(path)
    second = ann.page(first.partition('rel="next" href="')[2].partition('"')[0])
    assert [each in first for each in ids] == [True] * 50 + [False] * 10
    assert [each in second for each in ids] == [False] * 50 + [True] * 10
    assert "60" in ann.page(B + "dead-letters")


def test_topics_are_paged_by_name(site: Site, ann: Visitor) -> None:
    with Admin(site.database.dsn) as admin:
        for n in range(101):
            admin.topics.create(f"many-{n:03}", queues=1)

    first = ann.page(B + "topics?find=many")
    assert "many-099" in first
    assert "many-100" not in first
    assert "many-100" in ann.page(first.partition('rel="next" href="')[2].partition('"')[0])


def test_a_part_asked_for_by_a_script_is_no_whole_page(ann: Visitor) -> None:
    part = ann.get(B + "attention", **{"HX-Request": "true"})

    assert "<html" not in part.body
    assert "billing" in part.body
    assert "<html" in ann.get(B + "attention").body
    wrong = ann.get(B + "topics/nowhere/details", **{"HX-Request": "true"})
    assert (wrong.status, "<html" in wrong.body) == (404, False)


def test_several_brokers_have_pages_each(database: Database, second_database: Database) -> None:
    with Admin(database.dsn) as admin:
        admin.topics.create("only-on-a")
    second_database.rows("UPDATE mqdb.broker SET broker_name = 'broker-b' RETURNING 1")
    dsn = f"broker-a={database.dsn};broker-b={second_database.dsn}"
    with serving_alone(dsn=dsn) as visitor:
        assert "/b/broker-b/" in visitor.page("/")
        assert "only-on-a" in visitor.page("/b/broker-a/topics")
        assert "only-on-a" not in visitor.page("/b/broker-b/topics")


def test_the_overview_says_what_the_doctor_warns_of(database: Database, broker: Connection) -> None:
    create_group(broker)
    # The server of the tests fails other checks: it runs without fsync and without a broker process.
    listed = {check: look for check, look in examine.ALL_CHECKS.items() if check.name in ("lag", "dead-letters")}
    with patch.object(examine, "ALL_CHECKS", listed), serving_alone(dsn=database.dsn) as visitor:
        before = visitor.page(B + "health")
        bury(broker)
        dispatch_all(broker)
        after = visitor.page(B + "health")

    assert "The 3 checks of" in before
    assert "found nothing wrong" in before
    assert "found nothing wrong" not in after
    assert "warns of dead-letters; the groups are above" in after


def test_the_page_of_the_doctor_has_the_versions(site: Site, ann: Visitor) -> None:
    server = query(site.database.dsn, "SHOW server_version")

    found = ann.page(B + "doctor/findings")

    assert f"mqdb {__version__} · schema {head()} · PostgreSQL {server}" in found


def test_a_broker_that_is_away_is_said(database: Database) -> None:
    with serving_alone(dsn=with_parts(database.dsn, port=1)) as visitor:
        assert visitor.get(B).status == 200
        reply = visitor.get(B + "topics")

        health = visitor.page(B + "health")

    assert reply.status == 503
    assert "127.0.0.1:1" in reply.body
    assert ("FAIL" in health, "connection" in health) == (True, True)
