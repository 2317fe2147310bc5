"""The pages of the dashboard for upkeep: half messages, crons, storage, and selectors to try."""

from html import unescape
from urllib.parse import urlencode

from markupsafe import escape

from mqdb_client import Admin, HalfState, Message
from tests.fixtures.dashboard import SCRIPT, Site, Visitor, serving_alone
from tests.fixtures.postgres import Database

B = "/b/broker-a/"


def test_half_messages_are_ended_or_asked_about_again_after_a_question(site: Site, ann: Visitor) -> None:
    path = B + "transactions"
    given_up, committed, rolled_back = site.shop.halves
    assert [each in ann.page(path + "?given_up=1") for each in site.shop.halves] == [True, False, False]
    assert committed not in ann.page(path + "?group=others")

    def states() -> list[str]:
        with Admin(site.database.dsn) as admin:
            found = admin.transactions.list(tuple(HalfState), "senders")
        return [each.state for each in found if each.transaction_id in site.shop.halves]

    question = ann.act(path, id=committed, to="commit", topic="payments", group="senders")
    assert "Commit this half message?" in question.body
    assert "of group senders to topic payments" in question.body
    assert states() == ["DISCARDED", "PREPARED", "PREPARED"]

    done = ann.act(path, id=committed, to="commit", do="1")
    assert f"Half message {committed} is committed." in ann.page(done.location)
    ann.act(path, id=rolled_back, to="rollback", do="1")
    ann.act(path, id=given_up, to="resume", do="1")
    assert states() == ["PREPARED", "COMMITTED", "ROLLED_BACK"]
    assert [each in ann.page(path) for each in site.shop.halves] == [True, False, False]
    with Admin(site.database.dsn) as admin:
        ended = [each for each in admin.operations.list(topic="payments") if each.verb == "transaction.resolve"]
    assert [(each.actor, each.object) for each in ended] == [
        ("dashboard", each) for each in (given_up, rolled_back, committed)
    ]
    assert ann.act(path, id=committed, to="rollback", do="1").status == 403
    assert ann.act(path, id=committed, to="forget").status == 400
    assert ann.act(path, to="commit").status == 400


def test_a_cron_is_paused_resumed_and_removed_after_a_question(site: Site, ann: Visitor) -> None:
    def change(to: str) -> str:
        question = ann.act(B + "crons", name="weekly", to=to)
        assert f"{to.capitalize()} cron weekly?" in question.body
        done = ann.act(B + "crons", name="weekly", to=to, do="1")
        assert done.location == B + "crons"
        return ann.page(done.location)

    assert "Cron weekly is paused." in change("pause")
    assert ">paused<" in ann.page(B + "crons?find=weekly")
    assert "Cron weekly sends next at" in change("resume")
    assert ">paused<" not in ann.page(B + "crons?find=weekly")
    assert "Cron weekly is removed." in change("remove")
    assert ["weekly" in ann.page(B + "crons"), "nightly" in ann.page(B + "crons")] == [False, True]
    with Admin(site.database.dsn) as admin:
        done = [(each.verb, each.actor) for each in admin.operations.list(topic="orders") if each.object == "weekly"]
    assert done[:3] == [(f"cron.{verb}", "dashboard") for verb in ("remove", "resume", "pause")]
    assert ann.act(B + "crons", name="weekly", to="pause", do="1").status == 404
    assert ann.act(B + "crons", name="nightly", to="fire").status == 400
    assert ann.act(B + "crons", to="pause").status == 400


def test_a_cron_is_added_after_a_look_at_its_times(site: Site, ann: Visitor) -> None:
    form = {"name": "report", "cron": "30 7 1 1 *", "timezone": "Asia/Tokyo", "topic": "orders", "keys": "a b"}
    form |= {"body": "two\r\nlines", "tag": SCRIPT, "catch_up": "none"}

    plan = ann.act(B + "new-cron", **form)
    assert plan.body.count("-12-31 22:30:00 UTC</time>") == 5
    assert SCRIPT not in plan.body
    # The button adds the cron with the fields that were shown, not with later input.
    shown = plan.body.partition('<article class="plan">')[2].partition("</article>")[0]
    assert all(f'name="{name}" value="{escape(text)}"' in shown for name, text in form.items() if name != "body")
    assert "two\r\nlines</textarea>" in shown
    assert 'name="do"' not in plan.body.replace(shown, "")
    assert "report" not in ann.page(B + "crons")

    done = ann.act(B + "new-cron", **form, do="1")
    assert "Cron report is added." in ann.page(done.location)
    (row,) = site.database.rows("SELECT body, tag, keys, catch_up FROM mqdb.cron WHERE name = 'report'")
    assert (bytes(row[0]), *row[1:]) == (b"two\nlines", SCRIPT, "a b", "none")
    with Admin(site.database.dsn) as admin:
        assert [each.actor for each in admin.operations.list() if each.verb == "cron.add"][:1] == ["dashboard"]
    assert ann.act(B + "new-cron", **form, do="1").status == 400
    assert ann.act(B + "new-cron", **form | {"cron": "now and then"}).status == 400
    assert ann.act(B + "new-cron", **form | {"timezone": "Mars"}).status == 400
    assert ann.act(B + "new-cron", **form | {"name": "other", "topic": "nowhere"}, do="1").status == 404


def test_a_cron_that_nobody_fires_is_late(database: Database) -> None:
    with Admin(database.dsn) as admin:
        admin.topics.create("orders")
        admin.crons.add("tick", "@yearly", Message("orders", "tick"))
    assert "late by" not in _crons_alone(database)
    database.rows("UPDATE mqdb.cron SET next_at = mqdb.now() - interval '2 hours' RETURNING 1")
    assert "late by 2 h" in _crons_alone(database)


def _crons_alone(database: Database) -> str:
    with serving_alone(dsn=database.dsn) as visitor:
        return visitor.page(B + "crons")


def test_the_segments_of_the_log_are_shown_with_their_sizes_and_what_keeps_them(database: Database) -> None:
    rows = database.rows("SELECT segment, start_pos, end_pos - 1 FROM mqdb.segment ORDER BY segment")
    (first, start, end), second = rows[0], rows[1][0]
    database.rows(
        "UPDATE mqdb.segment SET state = 'closed', closed_at = mqdb.now() - interval '30 hours'"
        f" WHERE segment = {first} RETURNING 1"
    )
    with serving_alone(dsn=database.dsn) as visitor:
        segments = visitor.page(B + "storage/segments")
        rest = visitor.page(B + f"storage/segments?after={first}")
        assert "no segment is kept much longer than 72 h" in visitor.page(B + "storage/findings")
    with serving_alone(dsn=database.dsn, file_reserved_time="1s") as visitor:
        assert "may still get records of an open transaction" in visitor.page(B + "storage/findings")
        assert "retention" in visitor.page(B + "health")
        assert "Kept for</dt><dd>1.0 s" in visitor.page(B + "storage")
    assert (
        f'<td class="n">{first}</td><td>closed</td><td class="n">{start:,}</td><td class="n">{end:,}</td>' in segments
    )
    assert " KiB</td>" in segments
    assert [f'<td class="n">{each}</td><td>' in rest for each in (first, second)] == [False, True]


def test_a_selector_is_explained_and_tried_on_a_topic(ann: Visitor) -> None:
    def shown(**query: str) -> str:
        return ann.page(f"{B}selectors?{urlencode(query)}")

    alone = shown(sql="NOT amount = 5")
    assert ["Properties: amount" in alone, "Execution Time" in alone] == [True, False]
    tried = shown(sql="amount > 1", topic="orders")
    assert "1 of the last 3 messages match." in tried
    assert "Execution Time" in tried
    assert f"{B}topics/orders/messages?sql=amount+%3E+1" in tried
    for query, status, words in [
        ("sql=a+%3D", 400, "a ="),
        ("sql=a+%3D+1&topic=nowhere", 404, "topic 'nowhere' does not exist"),
        ("sql=a+%3D+1&topic=orders&last=10001", 400, "from 1 to 10,000"),
        ("last=0", 400, "from 1 to 10,000"),
    ]:
        reply = ann.get(f"{B}selectors?{query}")
        assert (reply.status, words in unescape(reply.body)) == (status, True), query
