"""The dashboard in a browser, as a person uses it for the first time."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

import pytest
from starlette.routing import Route

from mqdb.web.time_series import BrokerFigure
from mqdb_client import (
    Admin,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from tests.fixtures.browser import expect, new_page
from tests.fixtures.consumers import Inbox
from tests.fixtures.dashboard import Site, serving_site
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

B = "/b/broker-a/"


@pytest.fixture
def page(browser: "Browser", site: Site) -> "Iterator[Page]":
    """A page after following the link for logging in."""
    with new_page(browser, base_url=f"http://{site.address}") as page:
        page.goto(site.dashboard.link(site.address))
        yield page


class Pricing(Inbox):
    """A listener that fails for a message without a price."""

    def __call__(self, messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        if b"price" not in messages[0].body:
            raise LookupError(f"no price in {messages[0].body.decode()}")
        return super().__call__(messages)


def test_a_new_user_sees_a_message_fail_repairs_it_and_sends_it_back(page: "Page", site: Site) -> None:
    with Admin(site.database.dsn) as admin:
        admin.groups.update("pricing", retry_max_times=0)
        admin.topics.create("offers", queues=1)
    pricing = Pricing()
    consumer = PushConsumer("pricing", site.database.dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("offers")
    consumer.register_listener(pricing)
    with consumer, Producer("shop", site.database.dsn) as producer:
        message_id = producer.send(Message("offers", "one\napple")).message_id
        overview = page.get_by_role("link", name="Overview")
        expect(overview).to_be_visible()
        # Until the message has failed, the overview names the group too, under "Lag".
        dead_letters = page.locator("section").filter(has=page.get_by_role("heading", name="Dead letters"))
        while not dead_letters.get_by_role("link", name="pricing").count():
            overview.click()
            expect(page.locator(".later")).to_have_count(0)
        dead_letters.get_by_role("link", name="pricing").click()
        row = page.get_by_role("row").filter(has_text=message_id)
        expect(row).to_contain_text("LookupError")
        row.get_by_role("link").click()
        expect(page.locator("h1")).to_have_text(message_id)
        expect(page.locator("main")).to_contain_text("no price in one")
        expect(page.locator("details").first).to_contain_text("Traceback")

        page.get_by_role("link", name="Edit the body before the redrive").click()
        body = page.get_by_label("Body, in UTF-8")
        expect(body).to_have_value("one\napple")
        body.fill("one\napple, price 3")
        page.get_by_role("button", name="Show what the redrive would do").click()
        expect(page.locator("main")).to_contain_text("1 of 1 would go to group pricing again")
        assert pricing.messages == []
        page.get_by_role("button", name="Redrive 1 now").click()
        page.get_by_text("1 of 1 is on the way to group pricing").wait_for()
        pricing.wait_for(1)

    assert pricing.bodies == ["one\napple, price 3"]
    page.get_by_role("link", name="Operations").click()
    expect(page.get_by_role("row").nth(1)).to_contain_text("dlq.redrive")


def unvisited(site: Site, method: str, seen: list[str]) -> list[str]:
    """The routes of the brokers' pages that have received no request with this method."""
    routes = [each for each in site.dashboard.application.routes if isinstance(each, Route)]
    paths = [unquote(urlsplit(url).path) for asked, url in map(str.split, seen) if asked == method]
    return [
        each.path
        for each in routes
        if method in (each.methods or ()) and each.path.startswith("/b/")
        if not any(each.path_regex.match(path) for path in paths)
    ]


def faults_of_access(page: "Page") -> list[tuple[str, str]]:
    """The rules of WCAG 2.2 A and AA that a page breaks, each with an element that breaks it."""
    from axe_playwright_python.sync_playwright import Axe

    tags = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
    found = Axe().run(page, options={"runOnly": tags}).response["violations"]
    return [(each["id"], each["nodes"][0]["html"]) for each in found]


def places(site: Site) -> list[str]:
    """All pages, without the parts that they load."""
    letter = f"dead-letters/billing/{site.shop.letters[0]}"
    return [
        *("", "topics", "topics/orders", "topics/orders/messages?bodies=1", "topics/orders/tail", "topics/orders/send"),
        *(f"messages?id={site.shop.message}", f"messages/{site.shop.message}?body=1"),
        *("groups", "groups/billing", "groups/billing/settings", "groups/billing/topics/orders"),
        *("dead-letters", "dead-letters/billing"),
        *(letter + "?body=1", letter + "?edit=1", "scheduled", "transactions", "crons", "crons/nightly", "new-cron"),
        *("selectors?sql=amount%20%3E%201&topic=orders", "operations", "storage", "doctor", "new-topic"),
    ]


@pytest.mark.long
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light"), (1920, "dark")])
def test_each_page_works_without_a_fault_and_fits_the_screen(
    browser: "Browser", site: Site, width: int, scheme: str
) -> None:
    viewport = {"width": width, "height": 800}
    options = {"base_url": f"http://{site.address}", "viewport": viewport, "color_scheme": scheme}
    seen: list[str] = []
    reader = PushConsumer("billing", site.database.dsn)
    reader.subscribe("orders")
    reader.register_listener(Inbox())
    with reader, new_page(browser, **options) as page:
        page.on("request", lambda request: seen.append(f"{request.method} {request.url}"))
        page.goto(site.dashboard.link(site.address))
        [(client_id,)] = site.database.rows("SELECT client_id FROM mqdb.client WHERE group_name = 'billing'")
        for place in [*places(site), f"groups/billing/members/{quote(client_id)}"]:
            page.goto(B + place)
            expect(page.locator(".later, .htmx-request")).to_have_count(0)
            assert page.locator("h1").count() == 1, place
            assert page.locator(".fault[role=alert]").count() == 0, place
            assert page.evaluate("document.documentElement.scrollWidth") <= width, place
            assert faults_of_access(page) == [], place
        assert unvisited(site, "GET", seen) == []
        page.goto(B + "doctor")
        here, log_out = page.get_by_role("link", name="Doctor"), page.get_by_role("button", name="log out")
        right, bottom = (f"element => element.getBoundingClientRect().{edge}" for edge in ("right", "bottom"))
        # The pages are on one line: a wide screen has all else beside them, a narrow one moves it to the page shown.
        assert here.evaluate(right) <= width
        assert abs(here.evaluate(bottom) - log_out.evaluate(bottom)) < (10 if width > 1_000 else 60)


@pytest.mark.long
def test_the_lag_of_a_group_is_drawn(page: "Page", site: Site) -> None:
    wait_until(lambda: site.dashboard.figures.series.of(BrokerFigure.LAG, "billing"))
    page.goto(B + "groups/billing")
    expect(page.locator(".plot polyline")).to_have_count(1)
    assert page.locator(".plot polyline").evaluate("element => getComputedStyle(element).strokeWidth") == "2.5px"


@pytest.mark.long
def test_the_overview_moves_by_itself_and_keeps_what_is_open(page: "Page", site: Site) -> None:
    page.goto(B)
    expect(page.locator(".tile").first).to_contain_text("messages/s")
    with Producer("live", site.database.dsn) as producer:
        producer.send_batch([Message("orders", b"1")] * 900)
    page.get_by_text("As a table").click()
    expect(page.locator("#stored-table td", has_text="orders")).to_be_visible()
    before = page.locator("[data-live]").inner_html()

    expect(page.locator("[data-live]")).not_to_have_js_property("innerHTML", before)

    expect(page.locator("#stored-table td", has_text="orders")).to_be_visible()


@pytest.mark.long
def test_the_focus_stays_on_its_link_while_the_overview_moves(page: "Page", site: Site) -> None:
    wait_until(lambda: site.dashboard.figures.series.of(BrokerFigure.LAG, "billing"))
    page.goto(B)
    link = page.locator("[data-part=now]").get_by_role("link", name="billing")
    link.focus()
    before = link.element_handle()
    page.wait_for_function("before => !before.isConnected", arg=before)

    expect(link).to_be_focused()


@pytest.mark.long
def test_a_narrow_screen_shows_why_letters_died_and_that_tables_go_on(browser: "Browser", site: Site) -> None:
    options = {"base_url": f"http://{site.address}", "viewport": {"width": 400, "height": 800}}
    with new_page(browser, **options) as page:
        page.goto(site.dashboard.link(site.address))
        page.goto(B + "dead-letters/billing")
        expect(page.locator(".later, .htmx-request")).to_have_count(0)
        reason = page.locator(".reason").first
        table = page.locator(".wide", has=reason)
        expect(reason).to_contain_text("shop.Odd: odd")
        assert reason.evaluate("element => element.getBoundingClientRect().right") <= 400
        expect(table).to_have_class(re.compile("cut-end"))
        table.evaluate("element => { element.scrollLeft = element.scrollWidth }")
        expect(table).to_have_class(re.compile("cut-start"))
        expect(table).not_to_have_class(re.compile("cut-end"))


def test_keys_search_go_to_pages_and_list_themselves(page: "Page") -> None:
    page.goto(B)
    assert faults_of_access(page) == []
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Dead letters")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/topics")
    page.keyboard.press("/")
    page.keyboard.type("g t?")
    expect(page.get_by_role("searchbox", name="Part of a name")).to_have_value("g t?")
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.long
def test_a_tail_shows_messages_until_it_is_paused(page: "Page", site: Site) -> None:
    page.goto(B + "topics/orders/tail?tag=tailed")
    status = page.locator("[data-tail-status]")
    expect(status).to_have_text("Waiting for messages.")
    with Producer("tail", site.database.dsn) as producer:
        producer.send(Message("orders", b'{"first": 1}', tag="tailed"))
        expect(page.locator("[data-tail] tr")).to_have_count(1)
        expect(status).to_have_text("Following.")
        page.get_by_role("button", name="Pause").click()
        producer.send(Message("orders", b"second", tag="tailed"))
        page.get_by_role("button", name="Go on").click()
        expect(status).to_have_text("Waiting for messages.")
        producer.send(Message("orders", b"third", tag="tailed"))
        expect(page.locator("[data-tail] tr").first).to_contain_text("third")
    expect(page.locator("[data-tail] tr")).to_have_count(2)


@pytest.mark.long
def test_chosen_letters_are_redriven_by_keyboard(page: "Page", site: Site) -> None:
    page.goto(B + "dead-letters/billing")
    box = page.get_by_label(f"Choose {site.shop.letters[2]}")
    box.focus()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    page.keyboard.press("Space")
    page.get_by_role("button", name="Show what a redrive of the chosen would do").press("Enter")
    page.get_by_role("button", name="Redrive 1 now").press("Enter")
    page.get_by_text("1 of 1 is on the way").wait_for()

    assert outline == "solid"
    page.goto(B + "dead-letters/billing")
    page.get_by_label("Choose all of this page").check()
    assert page.locator("input[name=id]:checked").count() == 4


@pytest.mark.long
def test_a_viewer_looks_at_letters_and_finds_nothing_to_press(browser: "Browser", database: Database) -> None:
    with (
        serving_site(database, web_viewer_password="look") as site,
        new_page(browser, base_url=f"http://{site.address}") as page,
    ):
        page.goto("/login")
        page.get_by_label("Your name").fill("vera")
        page.get_by_label("Password").fill("look")
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("link", name="Dead letters").click()
        page.get_by_role("link", name="billing").first.click()
        page.get_by_role("link", name=site.shop.letters[1]).click()
        page.get_by_role("link", name="Show the body").click()
        assert "lines" in page.locator("pre.body").inner_text()
        assert page.get_by_role("button").all_inner_texts() == ["vera · log out"]
        assert page.locator("input[type=checkbox], textarea").count() == 0


@pytest.mark.long
def test_times_are_in_the_zone_of_the_reader(browser: "Browser", site: Site) -> None:
    options = {"base_url": f"http://{site.address}", "timezone_id": "Asia/Tokyo", "color_scheme": "dark"}
    with new_page(browser, viewport={"width": 360, "height": 740}, **options) as page:
        page.goto(site.dashboard.link(site.address))
        page.goto(B + "topics/orders/messages")
        time = page.locator("time").first
        assert time.inner_text().endswith("GMT+9")
        assert (time.get_attribute("title") or "").endswith(" UTC")
        # Dark, and no wider than the screen: tables scroll in themselves.
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.long
def test_it_works_without_scripts(browser: "Browser", site: Site) -> None:
    with new_page(browser, base_url=f"http://{site.address}", java_script_enabled=False) as page:
        page.goto(site.dashboard.link(site.address))
        page.get_by_role("link", name="What needs attention").click()
        page.get_by_role("link", name="billing").first.click()
        page.get_by_role("link", name=site.shop.letters[3]).click()
        page.get_by_role("link", name="Show the body").click()
        assert "00 ff" in page.locator("pre.body").inner_text()
        page.goto(B + "scheduled")
        page.get_by_role("button", name="Recall").first.click()
        page.get_by_role("button", name="Recall it").click()
        page.get_by_text("RECALLED").wait_for()


@pytest.mark.long
def test_what_can_be_done_is_done_by_clicks(page: "Page", site: Site) -> None:
    seen: list[str] = []
    page.on("request", lambda request: seen.append(f"{request.method} {request.url}"))
    page.goto(B + "topics")
    page.get_by_role("button", name="Make a topic").click()
    page.get_by_label("Name").fill("clicked")
    page.get_by_role("button", name="Make it").click()
    page.get_by_text("Topic clicked is created.").wait_for()

    page.goto(B + "topics/orders")
    page.get_by_role("link", name="Send a test message").click()
    page.get_by_label("Body").fill('{"total": 42}')
    page.get_by_role("button", name="Send").click()
    page.get_by_text("is sent to orders.").wait_for()

    page.goto(B + "groups/billing/topics/orders")
    page.get_by_label("Go on at").fill("earliest")
    page.get_by_role("button", name="Show the change").click()
    page.get_by_role("button", name="Reset now").click()
    page.get_by_text("offsets of billing in orders to earliest.").wait_for()
    expect(page.get_by_role("cell", name="offset.reset")).to_have_count(1)

    page.goto(B + "groups/billing")
    page.get_by_role("link", name="Change the settings").click()
    page.get_by_label("Retries").fill("3")
    page.get_by_role("button", name="Change them").click()
    page.get_by_text("The settings of billing are changed.").wait_for()

    page.goto(B + "crons/nightly")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Pause it").click()
    page.get_by_text("Cron nightly is paused.").wait_for()
    page.get_by_role("button", name="Add a cron").click()
    for label, text in (("Name", "hourly"), ("Times", "@hourly"), ("Topic", "orders"), ("Body", "tick")):
        page.get_by_role("textbox", name=label).fill(text)
    page.get_by_role("button", name="Show the next times").click()
    page.get_by_role("button", name="Add it now").click()
    page.get_by_text("Cron hourly is added.").wait_for()

    for name, change, done in (("nightly", "Resume", "sends next at"), ("weekly", "Remove", "is removed.")):
        page.goto(B + f"crons/{name}")
        page.get_by_role("button", name=change).click()
        page.get_by_role("button", name=f"{change} it").click()
        page.get_by_text(f"Cron {name} {done}").wait_for()

    given_up, first, second = site.shop.halves
    for half, button, done in (
        (first, "Commit", "is committed"),
        (second, "Roll back", "is rolled back"),
        (given_up, "Ask again", "is asked about again"),
    ):
        page.goto(B + "transactions")
        page.get_by_role("row").filter(has_text=half).get_by_role("button", name=button).click()
        page.get_by_text("Leave it").wait_for()
        page.get_by_role("main").get_by_role("button").click()
        page.get_by_text(f"Half message {half} {done}.").wait_for()

    page.goto(B + "scheduled")
    page.get_by_role("button", name="Recall").last.click()
    page.get_by_role("button", name="Recall it").click()
    page.get_by_text("RECALLED").wait_for()

    page.goto(B + "dead-letters/billing")
    page.get_by_label(f"Choose {site.shop.letters[1]}").check()
    page.get_by_role("button", name="Show what a redrive of the chosen would do").click()
    page.get_by_role("button", name="Redrive 1 now").click()
    page.get_by_text("1 of 1 is on the way").wait_for()
    assert unvisited(site, "POST", seen) == []


@pytest.mark.long
def test_ten_browsers_look_at_once(browser: "Browser", site: Site) -> None:
    """Each browser has its own session. No page waits for another visitor, and each page shows the figures."""
    with ExitStack() as closing:
        options = {"base_url": f"http://{site.address}"}
        pages = [closing.enter_context(new_page(browser, **options)) for _ in range(10)]
        for page in pages:
            page.goto(site.dashboard.link(site.address))
        for place in ("topics/orders", "groups/billing", "dead-letters/billing", "operations", "doctor", ""):
            # All pages send their requests before the first page has its answer.
            for page in pages:
                page.evaluate("place => { window.location = place }", B + place)
            for page in pages:
                page.wait_for_url(B + place)
                expect(page.locator(".later, .htmx-request")).to_have_count(0)
                assert page.locator(".fault[role=alert]").count() == 0, place
        for page in pages:
            expect(page.locator(".tile strong").first).to_have_text(re.compile("^[0-9]"))
        pages[0].get_by_role("button", name="log out").click()
        pages[0].wait_for_url("**/login")
        pages[1].reload()
        assert pages[1].url.endswith(B)
