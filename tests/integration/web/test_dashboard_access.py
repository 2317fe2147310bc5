"""The dashboard: logging in, and the pages from which a change may come."""

import base64
import re
from collections.abc import Iterator

import pytest

from mqdb.embedded import EmbeddedPostgres
from mqdb.web import guesses
from mqdb_client import Admin, errors
from tests.fixtures.dashboard import Site, Visitor, serving_alone, serving_site
from tests.fixtures.postgres import Database, new_database

B = "/b/broker-a/"
NEW = B + "new-topic"
PASSWORD = "geheim: ö%"


@pytest.fixture(scope="module")
def guarded(postgres: EmbeddedPostgres, template_database: str) -> Iterator[Site]:
    """A read-only dashboard with a password."""
    with (
        pytest.MonkeyPatch.context() as patch,
        new_database(postgres, template_database) as database,
        serving_site(database, web_password=PASSWORD, web_read_only=True) as site,
    ):
        patch.setattr(guesses, "_WAIT_SECONDS", 0)
        yield site


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def topics(site: Site) -> list[str]:
    """The names of users' topics."""
    with Admin(site.database.dsn) as admin:
        return [each.name for each in admin.topics.list()]


def test_a_stranger_sees_no_page(site: Site) -> None:
    stranger = site.stranger()

    for path in ("/", B, B + "topics", B + "live", "/b/nobody/topics", "/elsewhere", "/static", "/login/", "//login"):
        reply = stranger.get(path)
        assert (reply.status, reply.location) == (303, "/login"), path
    part = stranger.get(B + "health", **{"HX-Request": "true"})
    assert (part.status, part.headers["hx-redirect"]) == (401, "/login")
    assert stranger.post(NEW, {"name": "t", "queues": "1"}).status == 401
    stranger.cookies["mqdb_00000000"] = "x"
    assert stranger.get(B).status == 303
    login = stranger.get("/login")
    assert "mqdb serve" in login.body
    assert "default-src 'none'" in login.headers["content-security-policy"]
    assert "person" not in login.body


def test_assets_metrics_and_probes_are_open_on_loopback(site: Site) -> None:
    stranger = site.stranger()

    assert "htmx" in stranger.get("/static/htmx-2.0.11.min.js").body
    assert stranger.get("/static/dashboard.css").headers["content-type"].startswith("text/css")
    assert stranger.get("/metrics").status == 200
    assert stranger.get("/healthz").status == 200
    for path in ("/static/../dashboard.py", "/static/%2e%2e/dashboard.py", "/static/..%2fdashboard.py"):
        assert "import" not in stranger.get(path).body


def test_the_link_logs_in_once_and_the_next_one_is_told(site: Site) -> None:
    link = site.dashboard.link(site.address).partition(str(site.address))[2]
    one, other = site.stranger(), site.stranger()

    assert one.get(link, method="HEAD").status == 200
    reply = one.get(link)
    assert (reply.status, reply.location) == (303, "/")
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert one.get(B).status == 200
    used = other.get(link)
    assert (used.status, "has been used" in used.body) == (403, True)
    assert other.get("/login?token=").status == 403
    assert other.get(B).status == 303
    assert site.lines[-1] == f"  open     {site.dashboard.link(site.address)}"
    assert other.get(site.lines[-1].partition(str(site.address))[2]).status == 303
    assert other.get(B).status == 200


def test_who_logs_out_is_a_stranger(site: Site) -> None:
    visitor = site.visitor()
    cookies = dict(visitor.cookies)

    assert visitor.post("/logout", {}).location == "/login"
    visitor.cookies = cookies
    assert visitor.get(B).status == 303


def test_another_host_is_refused_on_loopback(site: Site) -> None:
    visitor = site.visitor()

    assert visitor.get(B, Host="evil.example").status == 403
    assert visitor.get("/static/dashboard.css", Host="evil.example").status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": ""},
        {"Sec-Fetch-Site": "", "Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "", "Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://HERE"},
    ],
)
def test_no_page_of_a_stranger_can_change_anything(site: Site, headers: dict[str, str]) -> None:
    visitor = site.visitor()
    form = {"form_token": visitor.get(NEW).form_token, "name": "forged", "queues": "1"}
    sent = {name: value.replace("HERE", str(site.address)) for name, value in headers.items()}

    reply = visitor.post(NEW, form, **sent)

    assert reply.status == 403
    assert "forged" not in topics(site)


def test_a_form_needs_the_token_of_its_session(site: Site) -> None:
    visitor, other = site.visitor(), site.visitor()

    for token in ("", "x", other.get(NEW).form_token):
        assert visitor.post(NEW, {"form_token": token, "name": "forged", "queues": "1"}).status == 403
    assert visitor.post(NEW, {"name": "forged", "queues": "1"}).status == 403
    assert visitor.post(NEW, {}, **{"Content-Type": "text/plain"}).status == 415
    assert visitor.post(B + "topics", {}).status == 405
    assert "forged" not in topics(site)
    token = visitor.get(NEW).form_token
    by_origin = {"Sec-Fetch-Site": "", "Origin": f"http://{site.address}"}
    assert visitor.post(NEW, {"form_token": token, "name": "mine", "queues": "1"}, **by_origin).status == 303
    assert "mine" in topics(site)


def test_a_form_may_not_be_as_large_as_it_likes(site: Site) -> None:
    many = [("form_token", "x")] + [("id", str(n)) for n in range(3_000)]

    assert site.visitor().post(NEW, many).status == 400
    assert site.stranger().post("/login", {"password": "x" * 70_000}).status == 413


def test_the_password_logs_in_under_a_name(guarded: Site) -> None:
    visitor = guarded.stranger()

    wrong = visitor.post("/login", {"name": "ada", "password": "x"})
    assert (wrong.status, "The password is wrong" in wrong.body) == (403, True)
    assert visitor.get(B).status == 303
    assert (
        visitor.post("/login", {"name": "ada", "password": PASSWORD}, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    )
    assert visitor.post("/login", {"name": " ada\x1b ", "password": PASSWORD}).location == "/"
    assert "ada" in visitor.page("/")
    nameless = guarded.stranger()
    nameless.post("/login", {"name": "", "password": PASSWORD})
    assert "dashboard · log out" in nameless.page("/")
    assert guarded.stranger().get("/login?token=x").status == 403


def test_each_way_to_give_a_password_counts_wrong_ones_and_waits(
    guarded: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    async def wait(_guesses: guesses.Guesses) -> None:
        seen.append("wait")

    monkeypatch.setattr(guesses.Guesses, "wait", wait)
    monkeypatch.setattr(guesses.Guesses, "note_wrong", lambda _guesses: seen.append("wrong"))
    stranger = guarded.stranger()

    assert stranger.post("/login", {"password": "x"}).status == 403
    assert stranger.get(B, Authorization=basic("ada", "x")).status == 401
    assert stranger.get("/metrics", Authorization="Bearer x").status == 401
    assert seen == ["wait", "wrong"] * 3
    assert stranger.get(B, Authorization=basic("ada", PASSWORD)).status == 200
    assert stranger.get("/metrics", Authorization=basic("", PASSWORD)).status == 200
    assert stranger.post("/login", {"password": PASSWORD}).status == 303
    assert seen[6:] == ["wait"] * 3
    # A request with a cookie does not count as a guess of a password.
    assert stranger.get(B).status == 200
    assert len(seen) == 9


def test_so_does_http_basic(guarded: Site) -> None:
    def status(authorization: str) -> int:
        return guarded.stranger().get(B, Authorization=authorization).status

    assert status(basic("ada", PASSWORD)) == 200
    assert [status(each) for each in (basic("ada", "x"), "Basic ~", "Basic", f"Bearer {PASSWORD}x")] == [401] * 4
    refused = guarded.stranger().get(B, Authorization=basic("ada", "x"))
    assert refused.headers["www-authenticate"].startswith("Basic")
    assert guarded.stranger().get("/metrics").status == 401
    assert guarded.stranger().get("/metrics", Authorization=basic("", PASSWORD)).status == 200
    assert guarded.stranger().get("/metrics/").status == 303
    assert guarded.stranger().get("/healthz").status == 200


def test_a_name_of_http_basic_is_the_actor(database: Database) -> None:
    with serving_site(database, web_password=PASSWORD) as site:
        ada = Visitor(site.address, headers={"Authorization": basic("ada", PASSWORD)})
        assert ada.act(NEW, name="hers", queues="1").status == 303
        with Admin(database.dsn) as admin:
            (done,) = admin.operations.list(topic="hers")

    assert done.actor == "ada"


#: Buttons that change nothing.
LOOKING = {"ada · log out", "Search", "Find", "Explain", "Close"}


def test_readers_see_all_and_change_nothing(guarded: Site) -> None:
    reader = Visitor(guarded.address, headers={"Authorization": basic("ada", PASSWORD)})
    dead = B + "dead-letters/billing"
    pages = [B, B + "topics", B + "topics/orders/messages?key=k2", B + "groups/billing/topics/orders", dead]
    pages += [f"{dead}/{guarded.shop.letters[0]}", B + "scheduled", B + "operations", B + "doctor/findings"]
    pages += [B + "transactions", B + "crons", B + "storage", B + "storage/segments"]
    pages += [B + "selectors?sql=amount%3E1&topic=orders"]

    for path in pages:
        text = reader.page(path)
        assert set(re.findall(r"<button[^>]*>([^<]*)<", text)) <= LOOKING, path
        assert "read-only" in text
    closed = [NEW, dead, B + "scheduled", B + "groups/billing/topics/orders"]
    for path in [*closed, B + "transactions", B + "crons", B + "new-cron"]:
        reply = reader.post(path, {"form_token": reader.get(dead).form_token, "name": "forged", "queues": "1"})
        assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
    assert "forged" not in topics(guarded)


def test_the_sessions_of_readers_could_not_write(database: Database) -> None:
    with Admin(database.dsn) as owner:
        owner.topics.create("orders")
    with Admin(database.dsn, read_only=True) as admin:
        with pytest.raises(errors.StorageRefused, match="read-only"):
            admin.topics.create("forged")
        # No process dispatches, and a reader cannot.
        database.rows("SELECT mqdb.send('orders', 'x'::text)")
        assert admin.messages.latest("orders").messages == []
        assert admin.messages.find("orders", key="k") == []
    with serving_alone(dsn=database.dsn, web_read_only=True) as visitor:
        assert "No message here" in visitor.page(B + "topics/orders/messages")
