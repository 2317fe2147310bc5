"""The dashboard's pages about groups: lag over time, members with their stacks, and the last changes of each object."""

from urllib.parse import quote

from mqdb.web.time_series import BrokerFigure
from mqdb_client import Admin, ConsumeFromWhere, Message, Producer, PushConsumer
from tests.fixtures.consumers import Gate
from tests.fixtures.dashboard import Site, Visitor, serving_alone
from tests.fixtures.processes import wait_until

B = "/b/broker-a/"


def test_the_lag_of_a_group_is_drawn_from_the_samples_of_the_process(site: Site, ann: Visitor) -> None:
    wait_until(lambda: site.dashboard.figures.series.of(BrokerFigure.LAG, "billing"))

    drawn = ann.page(B + "groups/billing/lag")
    assert ("1 message behind now, 1 at most" in drawn, drawn.count("<polyline ")) == (True, 1)
    assert "There is no sample of this group" in ann.page(B + "groups/nobody/lag")
    with serving_alone(dsn=site.database.dsn) as visitor:
        assert "There is no sample of this group" in visitor.page(B + "groups/billing/lag")


def test_a_member_says_which_queues_it_reads_and_where_its_listener_is(site: Site, ann: Visitor) -> None:
    with Admin(site.database.dsn) as admin:
        admin.topics.create("held", queues=1)
    listener = Gate("<b>held")
    consumer = PushConsumer("holders", site.database.dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("held")
    consumer.register_listener(listener)
    with consumer, Producer("shop", site.database.dsn) as producer:
        producer.send(Message("held", "<b>held"))
        try:
            wait_until(lambda: listener.waiting)
            members = ann.page(B + "groups/holders").partition("<h2>Members</h2>")[2]
            member = members.partition('href="')[2].partition('"')[0]
            # Including the queue of the retry topic.
            assert "Reads</dt><dd>2 queues<" in ann.page(member)
            assert member.partition("?")[0] in ann.page(B + "groups/holders/topics/held")
            answer = ann.page(member.replace("?", "/status?"))
            with serving_alone(dsn=site.database.dsn, web_read_only=True) as reader:
                assert "This one is read-only" in reader.page(member)
        finally:
            listener.open()
    assert "State</dt><dd>running<" in answer
    assert "in __call__\n" in answer.partition("Listeners that run")[2].partition("</pre>")[0]
    assert "<td>held@broker-a:0</td>" in answer.partition("<h3>Queues</h3>")[2]
    gone = ann.get(member)
    assert (gone.status, "member" in gone.body) == (404, True)


def test_beside_each_thing_stands_what_was_done_to_it(site: Site, ann: Visitor) -> None:
    letter, recalled = site.shop.letters[0], site.shop.timers[0]
    with Admin(site.database.dsn) as admin:
        for n in range(7):
            admin.groups.update("billing", retry_max_times=n, actor="ada")
        admin.timers.recall(recalled, actor="ada")
        admin.crons.pause("nightly", actor="ada")
        admin.topics.create("alone", actor="ada")

    def last(page: str) -> str:
        return ann.page(ann.page(page).partition("<h2>Operations on")[2].partition('hx-get="')[2].partition('"')[0])

    group = last(B + "groups/billing")
    assert group.count("group.update") == 5
    assert f'href="{B}operations?group=billing"' in group
    assert last(B + f"dead-letters/billing/{letter}") == last(B + "dead-letters/billing") == group
    for page, verb in (
        (f"messages/{recalled}", "timer.recall"),
        ("crons/nightly", "cron.pause"),
        ("topics/alone", "topic.create"),
    ):
        assert last(B + page).count("<td>ada") == last(B + page).count(f"<td>{verb}") == 1, page
    assert "No change is known" in last(B + f"messages/{letter}")
    ann.act(B + "dead-letters/billing", ("id", letter), do="1")
    assert last(B + f"messages/{letter}").count("<td>dlq.redrive") == 1
    assert "No change is known" in last(B + f"messages/{site.shop.letters[1]}")
    assert "cron.pause" in ann.page(B + "operations?object=nightly")
    assert "group.update" not in ann.page(B + "operations?object=nightly")
    assert ann.get(B + "crons/" + quote("no such", safe="")).status == 404


def test_the_settings_of_a_group_are_changed(site: Site, ann: Visitor) -> None:
    page = B + "groups/billing/settings"
    given = {"consume": "1", "consume_mode": "POP", "retry_max_times": "5", "consume_from_where": "FIRST_OFFSET"}

    assert f'href="{page}"' in ann.page(B + "groups/billing")
    ann.act(page, **given, retry_delays="1s..5s")

    with Admin(site.database.dsn) as admin:
        now = admin.groups.show("billing").settings
    assert (now.consume_mode, now.retry_max_times, now.consume_from_where) == ("POP", 5, "FIRST_OFFSET")
    assert [each.total_seconds() for each in now.retry_delays] == [1, 2, 4, 5]
    assert 'value="1s,2s,4s,5s"' in ann.page(page)
    for name, value in (("consume_mode", "BOTH"), ("retry_delays", "soon"), ("retry_max_times", "-1")):
        refused = ann.act(page, **given | {"retry_delays": "ladder", name: value})
        assert (refused.status, name in refused.body) == (400, True), name
    ann.act(page, **given | {"consume_mode": "PULL"}, retry_delays="ladder")
    with serving_alone(dsn=site.database.dsn, web_read_only=True) as reader:
        assert "Change the settings" not in reader.page(B + "groups/billing")
        assert reader.get(page).status == 403
