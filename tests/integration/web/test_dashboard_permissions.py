"""The dashboard: the permissions of viewers, and of people whom a trusted proxy names."""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from starlette.routing import Route

from mqdb.common.unique_id import format_unique_id
from mqdb.dashboard.brokers import Brokers
from mqdb.dashboard.gate import LOGIN, LOGOUT
from mqdb.embedded import EmbeddedPostgres
from mqdb.serving.web import Reach
from mqdb.settings import load_settings
from mqdb.store.engine import create_engine, transaction
from mqdb_client import Admin, Message
from tests.fixtures.broker import topic
from tests.fixtures.dashboard import SCRIPT, Reply, Site, Visitor, paths, serving_alone, serving_site
from tests.fixtures.postgres import Database, new_database
from tests.fixtures.processes import wait_until
from tests.fixtures.timers import timer
from tests.fixtures.transactions import send_half
from tests.fixtures.variants import usually
from tests.integration.web.test_dashboard_access import basic

B = "/b/broker-a/"
DEAD = B + "dead-letters/billing"
OFFSETS = B + "groups/billing/topics/orders"
PROXY = "127.0.0.2"
PROXIED = {"web_user_header": "X-Person", "web_trusted_proxies": PROXY}

_numbers = count()


@pytest.fixture(scope="module")
def site(postgres: EmbeddedPostgres, template_database: str) -> Iterator[Site]:
    """A site for all tests of this module, with all ways of logging in."""
    with (
        new_database(postgres, template_database) as database,
        serving_site(database, web_password="all", web_viewer_password="look", **PROXIED) as site,
    ):
        yield site


def viewer(site: Site) -> Visitor:
    visitor = site.stranger()
    assert visitor.post("/login", {"name": "vera", "password": "look"}).status == 303
    return visitor


def person(site: Site, **rights: Sequence[str]) -> Visitor:
    """A new person whom the proxy names, with these rights."""
    name = f"person-{next(_numbers)}"
    if rights:
        with Admin(site.database.dsn) as admin:
            admin.acl.grant(name, external=True, **rights)  # type: ignore[arg-type]
    return Visitor(site.address, headers={"X-Person": name}, source=PROXY)


def token(visitor: Visitor) -> str:
    """The token of the forms, from a page that everybody may see."""
    return visitor.get(DEAD).form_token


def post(visitor: Visitor, path: str, fields: Mapping[str, str]) -> Reply:
    return visitor.post(path, {"form_token": token(visitor), **fields})


def buttons(text: str) -> set[str]:
    return set(re.findall(r"<button[^>]*>([^<]*)<", text)) - {"Search", "Find", "Explain", "Follow", "Pause", "Close"}


def acting(site: Site) -> dict[str, str]:
    """All routes that accept a posted form, with a path for each."""
    routes = [each for each in site.dashboard.application.routes if isinstance(each, Route)]
    names = {"broker": "broker-a", "group": "billing", "topic": "orders"}
    found = [each.path for each in routes if "POST" in (each.methods or ()) and each.path not in (LOGIN, LOGOUT)]
    return {path: path.format(**names) for path in found}


# -- viewers ----------------------------------------------------------------------------------


def test_a_viewer_sees_all_pages_and_no_button(site: Site) -> None:
    vera = viewer(site)
    forms = {B + "new-topic", B + "new-cron", B + "groups/billing/settings", B + "topics/orders/send"}

    for path in paths(site):
        reply = vera.get(path)
        assert reply.status == (403 if path in forms else 303 if path == "/" else 200), (path, reply.body)
        assert buttons(reply.body) <= {"vera · log out"}, path
    assert "a body" in vera.page(f"{DEAD}/{site.shop.letters[0]}?body=1")
    assert "read-only" in vera.page(B)


def test_a_viewer_changes_nothing(site: Site) -> None:
    forms = acting(site)
    assert len(forms) >= 7
    by_form, by_header = viewer(site), Visitor(site.address, headers={"Authorization": basic("ada", "look")})

    for path in forms.values():
        for visitor in (by_form, by_header):
            reply = post(visitor, path, {"do": "1", "name": "forged"})
            assert (reply.status, "does not allow changes" in reply.body) == (403, True), path


def test_a_name_has_a_session_for_each_password(site: Site) -> None:
    operator = Visitor(site.address, headers={"Authorization": basic("ada", "all")})
    assert "Make a topic" in operator.page(B + "topics")
    namesake = Visitor(site.address, headers={"Authorization": basic("ada", "look")})
    assert "Make a topic" not in namesake.page(B + "topics")
    assert post(operator, B + "new-topic", {"name": "by-ada", "queues": "1"}).status == 303


def test_the_metrics_are_for_viewers_too(site: Site) -> None:
    assert site.stranger().get("/metrics", Authorization="Bearer look").status == 200
    assert site.stranger().get("/metrics", Authorization=basic("", "look")).status == 200
    assert site.stranger().get("/metrics", Authorization="Bearer lock").status == 401


# -- persons ----------------------------------------------------------------------------------


class Verb(NamedTuple):
    """A change: its posted form, and the rights that it needs."""

    route: str
    fields: Callable[[Site], dict[str, str]]
    rights: dict[str, list[str]]
    is_recorded: bool = True
    """Whether the change is recorded as an operation; a send is not."""


def cron(site: Site, *, is_paused: bool = False) -> str:
    """A cron of topic orders."""
    name = f"cron-{next(_numbers)}"
    with Admin(site.database.dsn) as admin:
        admin.crons.add(name, "@yearly", Message("orders", "x"))
        if is_paused:
            admin.crons.pause(name)
    return name


def waiting(site: Site) -> str:
    """The id of a message to topic orders that waits for its delivery time."""
    engine = create_engine(site.database.dsn)
    with engine.connect() as connection:
        (message_id,) = timer(connection, timedelta(hours=1), "later")
    engine.dispose()
    return message_id


def letter(number: int, **fields: str) -> Callable[[Site], dict[str, str]]:
    return lambda site: {"id": site.shop.letters[number], "again": "1", **fields}


def half(number: int, to: str) -> Callable[[Site], dict[str, str]]:
    return lambda site: {"id": site.shop.halves[number], "to": to}


ORDERS, BILLING = ["orders"], ["billing"]
RESET = "/b/{broker}/groups/{group}/topics/{topic}"
REDRIVE = "/b/{broker}/dead-letters/{group}"
SETTINGS = "/b/{broker}/groups/{group}/settings"
GROUP_SETTINGS = {
    "consume": "1",
    "consume_mode": "PULL",
    "retry_max_times": "16",
    "retry_delays": "ladder",
    "consume_from_where": "LAST_OFFSET",
}
CRONS, ADD = "/b/{broker}/crons", "/b/{broker}/new-cron"
HALVES, SCHEDULED = "/b/{broker}/transactions", "/b/{broker}/scheduled"
NEW_CRON = {"cron": "@yearly", "topic": "orders", "body": "x", "catch_up": "none"}

VERBS = {
    "make a topic": Verb("/b/{broker}/new-topic", lambda _: {"name": "made-1", "queues": "1"}, {"admin": ["made-*"]}),
    "send a test message": Verb("/b/{broker}/topics/{topic}/send", lambda _: {"body": "x"}, {"send": ORDERS}, False),
    "reset": Verb(RESET, lambda _: {"to": "earliest"}, {"operate_group": BILLING, "operate": ORDERS}),
    "reset by a reader": Verb(RESET, lambda _: {"to": "latest"}, {"operate_group": BILLING, "read": ORDERS}),
    "reset by a time": Verb(RESET, lambda _: {"to": "1h"}, {"operate_group": BILLING, "read": ORDERS}),
    "change settings": Verb(SETTINGS, lambda _: GROUP_SETTINGS, {"admin_group": BILLING}),
    "redrive": Verb(REDRIVE, letter(0), {"operate_group": BILLING}),
    "redrive to a topic": Verb(
        REDRIVE, letter(0, to_topic="payments"), {"operate_group": BILLING, "group": BILLING, "send": ["payments"]}
    ),
    "redrive another body": Verb(
        REDRIVE, letter(1, text="mended"), {"operate_group": BILLING, "group": BILLING, "send": ORDERS}
    ),
    "recall": Verb(SCHEDULED, lambda site: {"id": waiting(site), "topic": "orders"}, {"operate": ORDERS}),
    "recall by a sender": Verb(SCHEDULED, lambda site: {"id": waiting(site), "topic": "orders"}, {"send": ORDERS}),
    "ask again": Verb(HALVES, half(0, "resume"), {"operate": ["payments"]}),
    "commit": Verb(HALVES, half(1, "commit"), {"operate": ["pay*"]}),
    "roll back": Verb(HALVES, half(2, "rollback"), {"operate": ["*"]}),
    "pause": Verb(CRONS, lambda site: {"name": cron(site), "to": "pause"}, {"operate": ORDERS}),
    "remove": Verb(CRONS, lambda site: {"name": cron(site), "to": "remove"}, {"operate": ORDERS}),
    "resume": Verb(
        CRONS, lambda site: {"name": cron(site, is_paused=True), "to": "resume"}, {"operate": ORDERS, "send": ORDERS}
    ),
    "add a cron": Verb(ADD, lambda _: NEW_CRON | {"name": "added"}, {"operate": ORDERS, "send": ORDERS}),
}


OF_EACH_FORM = (
    *(
        "make a topic",
        "send a test message",
        "reset by a reader",
        "change settings",
        "redrive to a topic",
        "recall",
        "commit",
        "pause",
    ),
    "add a cron",
)


def test_each_form_is_one_of_these(site: Site) -> None:
    assert {verb.route for verb in VERBS.values()} == {VERBS[name].route for name in OF_EACH_FORM}
    assert {verb.route for verb in VERBS.values()} == set(acting(site))


@pytest.mark.parametrize("name", usually(*OF_EACH_FORM, of=VERBS))
def test_a_change_needs_each_of_its_rights(site: Site, name: str) -> None:
    verb = VERBS[name]
    path, fields = acting(site)[verb.route], verb.fields(site)
    without = [{kind: names for kind, names in verb.rights.items() if kind != missing} for missing in verb.rights]
    elsewhere: dict[str, Any] = {kind: ["elsewhere"] for kind in verb.rights}

    def operations() -> list[str | None]:
        with Admin(site.database.dsn) as admin:
            return [each.actor for each in admin.operations.list() if not each.verb.startswith("acl")]

    def replies(visitor: Visitor) -> list[Reply]:
        """The replies to the form without and with the confirmation."""
        form = {"form_token": token(visitor), **fields}
        return [visitor.post(path, each) for each in (form, form | {"do": "1"})]

    before = operations()
    for rights in ({}, elsewhere, *without):
        for reply in replies(person(site, **rights)):
            assert (reply.status, "has no right" in reply.body) == (403, True), (rights, reply.body)
    assert operations() == before
    allowed = person(site, **verb.rights)
    for reply in replies(allowed):
        assert reply.status in (200, 303), reply.body
    actors = {allowed.headers["X-Person"]} if verb.is_recorded else set()
    assert set(operations()[: len(operations()) - len(before)]) == actors


def test_who_may_not_read_learns_no_time_by_a_reset(site: Site) -> None:
    operator = person(site, operate_group=BILLING, operate=ORDERS)

    assert [post(operator, OFFSETS, {"to": to}).status for to in ("earliest", "1h", "2026-07-14")] == [200, 403, 403]


def test_a_cron_of_a_person_fires_while_the_person_has_the_rights(site: Site) -> None:
    keeper, name = person(site, operate=ORDERS, send=ORDERS), f"cron-{next(_numbers)}"
    assert post(keeper, acting(site)[ADD], NEW_CRON | {"name": name, "do": "1"}).status == 303

    session = site.database.connect()

    def fired() -> tuple[int, int]:
        [(sent, skipped)] = session.execute("SELECT sent, skipped FROM mqdb.cron WHERE name = %s", [name]).fetchall()
        return sent, skipped

    due = "UPDATE mqdb.cron SET next_at = mqdb.now() - interval '1 second' WHERE name = %s RETURNING 1"
    site.database.rows(due, name)
    wait_until(lambda: fired() == (1, 0))
    with Admin(site.database.dsn) as admin:
        [cron] = [each for each in admin.crons.list() if each.name == name]
        admin.acl.revoke(keeper.headers["X-Person"], send=ORDERS)
    site.database.rows(due, name)
    wait_until(lambda: fired() == (1, 1))

    assert cron.created_by == keeper.headers["X-Person"]


def test_half_messages_with_one_id_need_the_rights_on_all_their_topics(site: Site) -> None:
    """A sender who chooses the id of another half message gets no rights on the other half message."""
    engine = create_engine(site.database.dsn)
    with engine.connect() as connection:
        half_id = format_unique_id(send_half(connection, topic(connection, "mine")).unique_id)
        theirs = topic(connection, "theirs")
        with transaction(connection):  # or the key indexer might meet it before it has this id
            other = send_half(connection, theirs, dispatched=False)
            connection.exec_driver_sql(
                "UPDATE mqdb.commit_log SET msg_id = %s WHERE log_pos = %s", (half_id, other.log_pos)
            )
    engine.dispose()
    form = {"id": half_id, "to": "commit", "do": "1"}

    assert post(person(site, operate=["mine"]), B + "transactions", form).status == 403
    assert post(person(site, operate=["mine", "theirs"]), B + "transactions", form).status == 303


def test_a_message_is_recalled_for_the_topic_on_which_the_right_is(site: Site) -> None:
    operator = person(site, operate=["payments"])
    wanted = {"topic": "payments", "do": "1"}

    reply = post(operator, B + "scheduled", wanted | {"id": waiting(site)})

    assert "UNKNOWN" in operator.page(reply.location)
    # A handle, which names a topic itself, is not accepted as an id.
    assert post(operator, B + "scheduled", wanted | {"id": "djEgb3JkZXJzIGJyb2tlci1hIDAg"}).status == 400


def test_who_administers_makes_no_topic_of_any_size(site: Site) -> None:
    keeper = person(site, admin=["wide*"], admin_group=["wide"])

    assert post(keeper, B + "new-topic", {"name": "wide", "queues": "1025"}).status == 400
    assert post(keeper, B + "new-topic", {"name": "%RETRY%wide", "queues": "65"}).status == 400
    assert post(keeper, B + "new-topic", {"name": "TBW102", "queues": "1"}).status == 403


def test_buttons_are_for_who_may(site: Site) -> None:
    pages = {
        B + "topics": ({"admin": ["x*"]}, "Make a topic"),
        OFFSETS: ({"operate_group": BILLING, "read": ORDERS}, "Show the change"),
        DEAD: ({"operate_group": ["bill*"]}, "Show what a redrive"),
        B + "crons": ({"operate": ORDERS}, "Remove"),
    }
    nobody = person(site)

    for path, (rights, button) in pages.items():
        assert button not in nobody.page(path)
        assert button in person(site, **rights).page(path)
    assert buttons(nobody.page(B)) == set()
    assert "log out" not in nobody.page(B)


# -- what persons see -------------------------------------------------------------------------


def test_who_has_no_right_sees_names_and_numbers(site: Site) -> None:
    nobody = person(site)
    closed = re.compile(r"/(topics/[^/]+/(messages|send|tail)|dead-letters/billing/\w+|new-|selectors\?sql)")

    for path in paths(site):
        reply = nobody.get(path)
        assert reply.status == (403 if closed.search(path) else 303 if path == "/" else 200), (path, reply.body)
        for text in ("alert(", "k&lt;b", "shop.Odd", "a body"):
            assert text not in reply.body, (path, text)
    assert "orders" in nobody.page(B + "topics")
    assert site.shop.letters[3] in nobody.page(DEAD)


def test_what_messages_hold_is_for_readers_of_their_topic(site: Site) -> None:
    reader, stranger = person(site, read=ORDERS), person(site, read=["payments"])
    message = B + f"messages/{site.shop.message}?body=1"

    assert SCRIPT in reader.page(message)
    assert SCRIPT in reader.page(B + "topics/orders/messages?bodies=1")
    assert "amount" in reader.page(message)
    for hidden in (SCRIPT, "k<b>", "amount", "properties"):
        assert hidden not in stranger.page(message)
    assert reader.get(DEAD + "/" + site.shop.letters[0]).status == 403
    waiting_page = B + "scheduled"
    operator = person(site, operate=ORDERS)
    assert [SCRIPT in each.page(waiting_page) for each in (reader, operator, stranger)] == [True, True, False]
    assert "of the last" in reader.page(B + "selectors?sql=amount%3E1&topic=orders")


def test_what_dead_letters_say_is_for_members_of_their_group(site: Site) -> None:
    member, operator = person(site, group=BILLING), person(site, operate_group=BILLING)
    found = f"{DEAD}/{site.shop.letters[0]}"
    trace = B + f"messages/{site.shop.letters[0]}/trace"

    assert "a body" in member.page(found + "?body=1")
    assert "odd <script>" in member.page(DEAD)
    assert "odd <script>" in member.page(trace)
    dlq = B + "topics/" + quote("%DLQ%billing", safe="") + "/messages"
    assert [member.get(dlq).status, operator.get(dlq).status, operator.get(found).status] == [200, 403, 403]
    # An operator sees the class of the exception.
    assert ["shop.Odd" in operator.page(DEAD), "odd <script>" in operator.page(DEAD)] == [True, False]
    assert "odd <script>" not in operator.page(trace)
    attention = [each.page(B + "attention") for each in (member, operator, person(site))]
    assert ["shop.Odd" in each for each in attention] == [True, True, False]
    assert ["odd <script>" in each for each in attention] == [True, False, False]


def test_details_of_operations_are_for_who_has_done_them(site: Site) -> None:
    keeper = person(site, admin=["kept"])
    assert post(keeper, B + "new-topic", {"name": "kept", "queues": "1"}).status == 303

    assert "<details>" in keeper.page(B + "operations?topic=kept")
    others = person(site).page(B + "operations?topic=kept")
    assert ["<details>" in others, "topic.create" in others] == [False, True]


def test_names_of_a_namespace_are_whole_here(site: Site) -> None:
    with Admin(site.database.dsn) as admin:
        admin.topics.create("shop%orders", queues=1)
        admin.acl.grant("sam", external=True, namespace="shop", read=["orders"], operate=["orders"], admin=["*"])
    sam = Visitor(site.address, headers={"X-Person": "sam"}, source=PROXY)

    assert sam.get(B + "topics/orders/messages").status == 403
    assert sam.get(B + "topics/shop%25orders/messages").status == 200
    assert post(sam, B + "new-topic", {"name": "sams", "queues": "1"}).status == 403
    assert post(sam, B + "new-topic", {"name": "shop%sams", "queues": "1"}).status == 303


def test_who_is_called_like_the_owner_has_no_right_by_that(site: Site) -> None:
    ((owner,),) = site.database.rows("SELECT session_user::text")
    namesake = Visitor(site.address, headers={"X-Person": owner.encode().decode("latin-1")}, source=PROXY)

    assert namesake.get(B + "topics/orders/messages").status == 403
    assert post(namesake, B + "new-topic", {"name": "theirs", "queues": "1"}).status == 403


# -- the proxy --------------------------------------------------------------------------------


def test_the_header_counts_from_a_trusted_proxy_only(site: Site) -> None:
    forged = [{"X-Person": "ada"}, {"X-Person": "ada", "X-Forwarded-For": PROXY}]
    forged += [{"X-Person": "ada", "Forwarded": f"for={PROXY}", "X-Real-IP": PROXY}]

    for headers in forged:
        assert site.stranger().get(B, **headers).location == "/login"
    through = Visitor(site.address, source=PROXY)
    assert "ada" in through.get(B, **{"X-Person": "ada", "X-Forwarded-For": "10.9.8.7"}).body
    assert through.get(B).location == "/login"
    assert through.get("/login", **{"X-Person": "ada"}).location == "/"


def test_the_person_counts_and_not_what_the_proxy_passes_on(site: Site) -> None:
    operator = site.stranger()
    operator.post("/login", {"name": "boss", "password": "all"})
    both = Visitor(site.address, dict(operator.cookies), {"X-Person": "ada"}, PROXY)

    assert "Make a topic" in operator.page(B + "topics")
    for headers in ({}, {"Authorization": basic("boss", "all")}):
        text = both.get(B + "topics", **headers).body
        assert ["Make a topic" in text, "boss" in text] == [False, False]
    # The token of one person is not valid for another person.
    other = Visitor(site.address, headers={"X-Person": "bob"}, source=PROXY)
    assert both.post(B + "crons", {"form_token": token(other)}).status == 403


def test_without_a_password_nobody_is_served_but_by_the_proxy(database: Database) -> None:
    with serving_alone(dsn=database.dsn, http="0.0.0.0:0", **PROXIED) as stranger:
        for path in ("/", B, "/login", "/login?token=x", B + "topics"):
            assert stranger.get(path, **{"X-Person": "ada"}).status == 403, path
        assert stranger.post("/login", {"password": ""}).status == 403
        assert stranger.get("/healthz").status == 200
        ada = Visitor(stranger.address, headers={"X-Person": "ada"}, source=PROXY)
        assert "Topics" in ada.page("/")


def test_read_only_is_for_persons_too(database: Database) -> None:
    with Admin(database.dsn) as admin:
        admin.acl.grant("ada", external=True, admin=["*"], read=["*"])
    with serving_alone(dsn=database.dsn, web_read_only=True, **PROXIED) as stranger:
        ada = Visitor(stranger.address, headers={"X-Person": "ada"}, source=PROXY)

        assert "Make a topic" not in ada.page(B + "topics")
        assert ada.post(B + "new-topic", {"name": "forged"}).status == 405


# -- probes -----------------------------------------------------------------------------------


def test_mqdb_web_is_ready_while_its_brokers_answer(database: Database) -> None:
    away = "postgresql://mqdb@127.0.0.1:1/mqdb"
    with serving_alone(dsn=f"broker-a={database.dsn};b={away}") as visitor:
        visitor.cookies.clear()
        assert visitor.get("/healthz").status == 200
        reply = visitor.get("/readyz")
        assert (reply.status, '"failing":["b"]' in reply.body, '"broker-a":"ok"' in reply.body) == (503, True, True)
    with serving_alone(dsn=database.dsn) as visitor:
        assert visitor.get("/readyz").status == 200


class Counted(Brokers):
    """Brokers that count the calls of `admin`."""

    asked = 0

    def admin(self) -> Admin:
        self.asked += 1
        return super().admin()


def test_many_probes_ask_the_brokers_once(database: Database) -> None:
    now, brokers = 100.0, Counted(load_settings(dsn=database.dsn))
    reach = Reach(brokers, lambda: now)

    async def probe() -> list[bool]:
        nonlocal now
        reports = list(await asyncio.gather(*(reach.report() for _ in range(10))))
        now += 4.9
        reports.append(await reach.report())
        assert brokers.asked == 1
        now += 0.2
        reports.append(await reach.report())
        return [each.has_passed for each in reports]

    assert asyncio.run(probe()) == [True] * 12
    assert brokers.asked == 2
    brokers.close()
