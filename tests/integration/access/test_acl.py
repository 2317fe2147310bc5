"""Rights of roles that do not own the broker: the topics that SEND covers, and the refusals beyond them."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg import sql

from mqdb.common.topic import (
    NOT_ALLOWED_SEND,
    REPLY_SUFFIX,
    SYSTEM_TOPICS,
    dlq_topic,
    is_group_topic,
    is_system_topic,
    reply_topic,
    retry_topic,
)
from mqdb.store.engine import translate
from mqdb_client import Access, Admin, Resource, ResourceType, Right, Rights, errors
from tests.fixtures.log import Connection, create_topic, dispatch, scalar
from tests.fixtures.postgres import OWNER, Database
from tests.fixtures.roles import MakeRole

SHOP = 'the "shop"'

Session = psycopg.Connection[Any]

SEND = partial(Resource, Access.SEND, ResourceType.TOPIC)


def names(resources: Iterable[Resource]) -> list[str]:
    return [resource.name for resource in resources]


def rights_in(rights: Iterable[Right]) -> list[str]:
    return names(right.resource for right in rights)


@pytest.fixture
def admin(database: Database) -> Iterator[Admin]:
    with Admin(database.dsn) as admin:
        yield admin


@pytest.fixture
def shop(role: MakeRole) -> Iterator[Session]:
    """A session of a role without any rights."""
    with psycopg.connect(role(SHOP), autocommit=True) as session:
        yield session


def send(session: Session, topic: str | None) -> None:
    """Send a message by SQL; raises the error that an mqdb client would raise."""
    try:
        session.execute("SELECT mqdb.send(%s, 'x')", [topic])
    except psycopg.Error as error:
        raise translate(error, "here") from error


def test_who_has_the_right_sends_and_reads_nothing(admin: Admin, log: Connection, shop: Session) -> None:
    create_topic(log, "orders")

    assert names(admin.acl.grant(SHOP, send=["orders"])) == ["orders"]
    send(shop, "orders")

    assert dispatch(log).messages == 1
    for empty in ("mqdb.commit_log", "mqdb.consume_queue", "mqdb.message_index", "mqdb.message", "mqdb.commit_log_1"):
        assert shop.execute(f"TABLE {empty}".encode()).fetchall() == []
    for hidden in ("mqdb.acl", "mqdb.timer", "mqdb.half_message", "mqdb.message_index_1"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            shop.execute(f"TABLE {hidden}".encode())


def test_a_message_that_waits_is_sent_as_well(admin: Admin, log: Connection, shop: Session) -> None:
    create_topic(log, "orders")
    admin.acl.grant(SHOP, send=["orders"])

    shop.execute("SELECT mqdb.send('orders', 'x', delay_level => 3)")
    shop.execute("SELECT mqdb.send('orders', 'x', deliver_at => '2999-01-01')")

    assert scalar(log, "SELECT count(*) FROM mqdb.commit_log WHERE properties ->> 'REAL_TOPIC' = 'orders'") == 2


def test_a_prefix_covers_what_is_made_later(admin: Admin, log: Connection, shop: Session) -> None:
    admin.acl.grant(SHOP, send=["invoices-*"])
    create_topic(log, "invoices-2027")

    send(shop, "invoices-2027")

    with pytest.raises(errors.AccessDenied):
        send(shop, "invoices")


def test_a_refusal_names_role_right_and_topic_and_tells_of_no_topic(
    admin: Admin, log: Connection, shop: Session
) -> None:
    create_topic(log, "secret")
    admin.acl.grant(SHOP, send=["orders"])

    with pytest.raises(errors.AccessDenied) as of_one_that_is_there:
        send(shop, "secret")
    with pytest.raises(errors.AccessDenied) as of_none:
        send(shop, "nowhere")

    error = of_one_that_is_there.value
    assert (error.principal, error.access, error.resource_type, error.resource) == (SHOP, "SEND", "TOPIC", "secret")
    assert str(error).replace("secret", "nowhere") == str(of_none.value)
    with pytest.raises(errors.TopicNotFound):  # its own affair
        send(shop, "orders")


def test_no_right_covers_what_belongs_to_the_broker(admin: Admin, log: Connection, shop: Session) -> None:
    admin.acl.grant(SHOP, send=["*"])

    for topic in (*SYSTEM_TOPICS, "rmq_sys_x", "%RETRY%g", "%DLQ%g", "c_REPLY_TOPIC"):
        log.execute(
            "INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm) VALUES (%s, 1, 1, 6)"
            "ON CONFLICT DO NOTHING",
            [topic],
        )
        with pytest.raises(errors.NameInvalid):
            admin.acl.grant(SHOP, send=[topic])
        log.execute("INSERT INTO mqdb.acl VALUES (%s, 'SEND', 'TOPIC', %s)", [SHOP, topic])
        with pytest.raises(errors.AccessDenied):
            send(shop, topic)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(name=st.text(alphabet="%|aZ09_-R", min_size=1, max_size=20))
@example(name=retry_topic("g"))
@example(name=dlq_topic("g"))
@example(name=reply_topic("a.b"))
def test_which_topics_belong_to_users_is_the_same_for_python(log: Connection, name: str) -> None:
    expected = not (is_system_topic(name) or is_group_topic(name) or name.endswith(REPLY_SUFFIX))

    assert scalar(log, "SELECT mqdb.is_topic_of_users(%s)", [name]) == expected


def test_system_topics_belong_to_no_user(log: Connection) -> None:
    for name in SYSTEM_TOPICS | NOT_ALLOWED_SEND:
        assert scalar(log, "SELECT mqdb.is_topic_of_users(%s)", [name]) is False


def test_a_right_that_is_taken_away_is_gone_with_the_next_statement(
    admin: Admin, log: Connection, shop: Session
) -> None:
    create_topic(log, "orders")
    admin.acl.grant(SHOP, send=["orders", "invoices-*"])
    send(shop, "orders")

    assert names(admin.acl.revoke(SHOP, send=["orders"])) == ["orders"]

    with pytest.raises(errors.AccessDenied):
        send(shop, "orders")
    assert rights_in(admin.acl.list(SHOP)) == ["invoices-*"]


def test_with_its_last_right_a_role_leaves_the_schema(admin: Admin, database: Database, shop: Session) -> None:
    admin.acl.grant(SHOP, send=["orders", "invoices-*"])

    assert names(admin.acl.revoke(SHOP)) == ["invoices-*", "orders"]

    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="schema mqdb"):
        shop.execute("SELECT mqdb.send('orders', 'x')")
    assert admin.acl.revoke(SHOP) == []


def test_rights_on_tables_outlive_those_on_topics(admin: Admin, log: Connection, shop: Session) -> None:
    create_topic(log, "orders")
    admin.acl.grant(SHOP, send=["orders"])
    log.execute(sql.SQL("GRANT SELECT ON mqdb.topic TO {}").format(sql.Identifier(SHOP)))

    admin.acl.revoke(SHOP)

    assert shop.execute("SELECT count(*) FROM mqdb.topic").fetchone() is not None


def test_the_same_again_changes_nothing(admin: Admin, shop: Session) -> None:
    admin.acl.grant(SHOP, send=["orders"], actor="ada")
    granted = admin.acl.list()

    assert admin.acl.grant(SHOP, send=["orders", "orders"]) == []
    assert admin.acl.list() == granted
    admin.acl.revoke(SHOP, actor="grace")
    assert [(each.verb, each.actor, each.object, each.topics) for each in admin.operations.list()] == [
        ("acl.revoke", "grace", SHOP, ["orders"]),
        ("acl.grant", "ada", SHOP, ["orders"]),
    ]


def test_rights_are_listed_by_role_and_by_the_topic_that_they_cover(admin: Admin, shop: Session) -> None:
    admin.acl.grant(SHOP, send=["orders", "o*", "invoices"])

    assert [right[:2] for right in admin.acl.list(topic="orders")] == [
        (SHOP, SEND("o*")),
        (SHOP, SEND("orders")),
    ]
    assert rights_in(admin.acl.list(SHOP)) == ["invoices", "o*", "orders"]
    assert admin.acl.list("nobody") == admin.acl.list(topic="%DLQ%o") == []


def test_the_owner_and_a_member_of_its_role_need_no_right(
    admin: Admin, database: Database, log: Connection, shop: Session
) -> None:
    create_topic(log, "orders")
    assert admin.acl.allows(OWNER, send="orders")
    assert not admin.acl.allows(SHOP, send="orders")
    assert not admin.acl.allows("nobody at all", send="orders")

    member = sql.SQL("GRANT {} TO {}").format(sql.Identifier(OWNER), sql.Identifier(SHOP))
    database.connect_as_superuser().execute(member)

    assert admin.acl.allows(SHOP, send="orders")
    send(shop, "orders")


def test_what_cannot_be_granted_is_refused_whole(admin: Admin, shop: Session) -> None:
    with pytest.raises(errors.ParameterInvalid):
        admin.acl.grant("nobody at all", send=["orders"])
    with pytest.raises(errors.ParameterInvalid):
        admin.acl.grant(SHOP, send=[])
    for send in (["orders", "with a blank"], ["or*ders"], [""]):
        with pytest.raises(errors.NameInvalid):
            admin.acl.grant(SHOP, send=send)

    assert not admin.acl.list()
    assert not admin.operations.list()


def test_a_right_that_is_not_there_is_not_taken_away(admin: Admin, shop: Session) -> None:
    admin.acl.grant(SHOP, send=["orders"])

    assert admin.acl.revoke(SHOP, send=[]) == []

    with pytest.raises(errors.ParameterInvalid, match="has no such right"):
        admin.acl.revoke(SHOP, send=["orders", "invoices"])

    assert rights_in(admin.acl.list()) == ["orders"]


def test_rights_are_brought_to_what_somebody_wants(admin: Admin, log: Connection, shop: Session) -> None:
    admin.acl.grant(SHOP, send=["orders", "old"])
    wanted = {SHOP: Rights(send=["orders", "invoices-*"]), "nobody": Rights()}

    planned = admin.acl.apply(wanted, dry_run=True)
    unchanged = rights_in(admin.acl.list())
    done = admin.acl.apply(wanted)

    assert planned == done == [(SHOP, SEND("invoices-*"), True), (SHOP, SEND("old"), False)]
    assert unchanged == ["old", "orders"]
    assert rights_in(admin.acl.list()) == ["invoices-*", "orders"]
    before = admin.operations.list()
    assert admin.acl.apply(wanted) == admin.acl.apply({}) == []
    assert admin.operations.list() == before
    assert admin.acl.apply({SHOP: Rights()}) == [(SHOP, SEND("invoices-*"), False), (SHOP, SEND("orders"), False)]


def test_of_what_somebody_wants_all_is_done_or_nothing(admin: Admin, shop: Session) -> None:
    for second in ({"the nobody": Rights(["orders"])}, {"z": Rights(["%DLQ%g"])}):
        with pytest.raises(errors.InvalidInput):
            admin.acl.apply({SHOP: Rights(["orders"]), **second})

    assert not admin.acl.list()
    assert not admin.operations.list()


def test_what_may_be_operated_and_administered(admin: Admin, shop: Session) -> None:
    for rights, is_legal in (
        (Rights(group=["billing"]), True),
        (Rights(group=["billing*"]), False),
        (Rights(group=["*"]), False),
        (Rights(operate_group=["billing*", "*", "billing"]), True),
        (Rights(admin_group=["billing*", "*"]), True),
        (Rights(admin_group=["bil*ling"]), False),
        (Rights(operate_group=[""]), False),
        (Rights(operate=["*", "o*", "orders"], admin=["*"]), True),
        (Rights(operate=["%DLQ%billing"]), False),
        (Rights(admin=["rmq_sys_x"]), False),
        (Rights(admin=["x_REPLY_TOPIC"]), False),
    ):
        admin.acl.apply({SHOP: Rights()})
        if is_legal:
            admin.acl.apply({SHOP: rights})
        else:
            with pytest.raises(errors.NameInvalid):
                admin.acl.apply({SHOP: rights})
        found = {right.resource for right in admin.acl.list(SHOP)}
        assert found == (set(rights.resources()) if is_legal else set()), rights


def test_the_table_refuses_a_membership_by_prefix(log: Connection) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        log.execute("INSERT INTO mqdb.acl VALUES ('a', 'READ', 'GROUP', 'billing*')")
    with pytest.raises(psycopg.errors.CheckViolation):
        log.execute("INSERT INTO mqdb.acl VALUES ('a', 'SEND', 'GROUP', 'billing')")


def test_no_right_contains_another(admin: Admin, log: Connection, shop: Session) -> None:
    kinds = list(Rights.KINDS)
    for kind in kinds:
        log.execute("DELETE FROM mqdb.acl")
        admin.acl.grant(SHOP, **{kind: ["x"]})  # type: ignore[arg-type]  # for mypy `kind` may be `actor`, too

        assert [each for each in kinds if admin.acl.allows(SHOP, **{each: "x"})] == [kind]


def test_a_right_on_a_group_covers_its_two_topics_and_no_other(admin: Admin, log: Connection, shop: Session) -> None:
    admin.acl.grant(SHOP, operate_group=["bill*"])

    names = "%RETRY%billing", "%DLQ%bill", "%DLQ%bil", "billing", "%RETRY%", "RETRY%billing", "%DLQ%%DLQ%bill"
    is_allowed = "SELECT mqdb.is_allowed(%s, 'OPERATE', 'TOPIC', %s)"
    covered = {name for name in names if scalar(log, is_allowed, [SHOP, name])}
    assert covered == {"%RETRY%billing", "%DLQ%bill"}
    assert not admin.acl.allows(SHOP, operate_group="bil")
    assert admin.acl.allows(SHOP, operate_group="billing")


#: Beyond the right SEND on `orders`: what somebody tries in SQL, and the SQLSTATE that it gets.
ATTACKS = {
    "write_the_log": ("INSERT INTO mqdb.commit_log (queue_key) VALUES (1)", "MQ204"),
    "write_a_partition": ("INSERT INTO mqdb.commit_log_1 (queue_key) VALUES (1)", "42501"),
    "copy_into_the_log": ("COPY mqdb.commit_log FROM STDIN", "42501"),
    "copy_out_of_the_log": ("COPY mqdb.commit_log TO '/tmp/copy'", "42501"),
    "move_positions_ahead": ("SELECT setval('mqdb.log_pos', 1000000000)", "42501"),
    "burn_positions": ("SELECT nextval('mqdb.log_pos')", "42501"),
    "put_the_dispatcher_to_sleep": ("SELECT setval('mqdb.dispatcher_state', 1)", "42501"),
    "grant_itself": ("INSERT INTO mqdb.acl VALUES (session_user, 'SEND', 'TOPIC', '*')", "42501"),
    "ask_for_somebody_else": ("SELECT mqdb.is_allowed('somebody', 'SEND', 'TOPIC', 'orders')", "MQ108"),
    "note_what_was_not": (
        "SELECT mqdb.record_operation('topic.delete', '{orders}', '{}', NULL, NULL, NULL, 1, NULL, 'ada')",
        "42501",
    ),
    "dispatch_parts": ("SELECT * FROM mqdb.begin_batch('dispatch')", "42501"),
    "lock_the_log": ("LOCK TABLE mqdb.commit_log IN ROW EXCLUSIVE MODE", "42501"),
    "lock_a_service_out": ("LOCK TABLE mqdb.lock_dispatch IN SHARE UPDATE EXCLUSIVE MODE", "42501"),
    "lock_its_right": ("SELECT FROM mqdb.acl FOR UPDATE", "42501"),
    "redrive": ("SELECT * FROM mqdb.dlq_redrive('{1}')", "MQ204"),
    "recall": ("SELECT mqdb.recall(NULL, repeat('0', 32))", "42501"),
    "make_segments": ("SELECT mqdb.ensure_segments(1000)", "MQ108"),
    "make_a_function_in_the_schema": ("CREATE FUNCTION mqdb.send(text) RETURNS text RETURN 'x'", "42501"),
    "watch_with_a_trigger": (
        "CREATE TRIGGER t AFTER INSERT ON mqdb.commit_log EXECUTE FUNCTION mqdb.wake_dispatcher()",
        "42501",
    ),
    "wake_the_dispatcher_from_a_table_of_its_own": (
        "CREATE TEMP TABLE t (); CREATE TRIGGER t AFTER INSERT ON t EXECUTE FUNCTION mqdb.wake_dispatcher()",
        "42501",
    ),
    "send_to_a_system_topic": ("SELECT mqdb.send('SCHEDULE_TOPIC_XXXX', 'x')", "MQ204"),
    "send_to_a_retry_topic": ("SELECT mqdb.send('%RETRY%billing', 'x')", "MQ204"),
    "send_to_nothing": ("SELECT mqdb.send(NULL, 'x')", "MQ108"),
    "name_the_real_topic": ("SELECT mqdb.send('orders', 'x', properties => '{\"REAL_TOPIC\": \"secret\"}')", "MQ104"),
    "name_a_delay_by_a_property": ("SELECT mqdb.send('orders', 'x', properties => '{\"DELAY\": \"1\"}')", "MQ104"),
    "come_back_as_a_retry": ("SELECT mqdb.send('orders', 'x', properties => '{\"RETRY_TOPIC\": \"secret\"}')", "MQ104"),
    "a_body_beyond_the_limit": ("SELECT mqdb.send('orders', convert_to(repeat('x', 4194305), 'UTF8'))", "MQ102"),
    "properties_beyond_the_limit": (
        "SELECT mqdb.send('orders', 'x', properties => jsonb_build_object('a', repeat('x', 40000)))",
        "MQ103",
    ),
    "keys_beyond_the_limit": ("SELECT mqdb.send('orders', 'x', keys => repeat('k ', 20000))", "MQ103"),
    "keys_beyond_the_limit_elsewhere": ("SELECT mqdb.send('secret', 'x', keys => repeat('k ', 20000000))", "MQ204"),
    "properties_that_are_deep": (
        "SELECT mqdb.send('orders', 'x', properties => (repeat('{\"a\":', 900) || '1' || repeat('}', 900))::jsonb)",
        "MQ105",
    ),
    "properties_that_are_many": (
        "SELECT mqdb.send('orders', 'x', properties => jsonb_object_agg(n, 'v')) FROM generate_series(1, 9999) n",
        "MQ103",
    ),
    "properties_that_are_no_object": ("SELECT mqdb.send('orders', 'x', properties => '[1]')", "MQ108"),
    "a_property_that_is_no_text": ("SELECT mqdb.send('orders', 'x', properties => '{\"a\": {\"b\": 1}}')", "MQ105"),
    "a_time_that_never_comes": ("SELECT mqdb.send('orders', 'x', deliver_at => 'infinity')", "MQ106"),
    "see_statistics": ("SELECT count(*) / 0 FROM pg_stats WHERE schemaname = 'mqdb' HAVING count(*) > 0", None),
    "say_when_it_was_stored": ("SELECT mqdb.send('orders', 'x', store_time => now())", "42883"),
}


def test_who_may_send_to_a_topic_may_do_nothing_else(admin: Admin, log: Connection, shop: Session) -> None:
    for name in ("orders", "secret"):
        create_topic(log, name)
    log.execute("ANALYZE mqdb.topic")
    admin.acl.grant(SHOP, send=["orders"])
    got: dict[str, str | None] = {}

    for attack, (statement, _) in ATTACKS.items():
        try:
            with shop.transaction():
                shop.execute(statement.encode())
            got[attack] = None
        except psycopg.Error as error:
            got[attack] = error.sqlstate

    assert got == {attack: sqlstate for attack, (_, sqlstate) in ATTACKS.items()}
    assert scalar(log, "SELECT count(*) FROM mqdb.commit_log") == 0


def test_neither_functions_nor_settings_of_its_own_change_the_decision(
    admin: Admin, log: Connection, shop: Session
) -> None:
    """A role's own functions and settings do not change the decision.

    The role creates them in its schema of temporary objects, which every role may use, or as a role that it may become.
    """
    for name in ("orders", "secret"):
        create_topic(log, name)
    admin.acl.grant(SHOP, send=["orders"])
    for trap in (
        "CREATE FUNCTION pg_temp.is_allowed(text, text, text, text) RETURNS boolean RETURN true",
        "CREATE FUNCTION pg_temp.has_table_privilege(name, text, text) RETURNS boolean RETURN true",
        "CREATE FUNCTION pg_temp.starts_with(text, text) RETURNS boolean RETURN true",
        "CREATE TEMP TABLE acl (principal text, access text, resource_type text, resource text)",
        "SET search_path = pg_temp, mqdb, pg_catalog",
        "SET mqdb.identity = 'known'",
        "SET row_security = off",
    ):
        shop.execute(trap.encode())

    for topic in ("secret", "Orders", "orders ", "orders*", "*"):
        with pytest.raises(errors.AccessDenied):
            send(shop, topic)
    send(shop, "orders")


def test_a_prefix_is_no_pattern(admin: Admin, log: Connection, shop: Session) -> None:
    create_topic(log, "orders")
    for pattern in ("o_ders", "or%", "orders|x", "-", "%"):
        admin.acl.grant(SHOP, send=[pattern, pattern + "*"])

        with pytest.raises(errors.AccessDenied):
            send(shop, "orders")


def test_every_decision_is_the_one_that_the_rules_give(admin: Admin, log: Connection, shop: Session) -> None:
    names = ["a", "ab", "abc", "b", "%RETRY%a", "rmq_sys_a"]
    resources = ["a", "ab", "a*", "ab*", "b*"]
    for chosen in product((False, True), repeat=len(resources)):
        granted = [resource for resource, is_chosen in zip(resources, chosen, strict=True) if is_chosen]
        log.execute("DELETE FROM mqdb.acl")
        for resource in granted:
            log.execute("INSERT INTO mqdb.acl VALUES (%s, 'SEND', 'TOPIC', %s)", [SHOP, resource])
        allowed = {name: scalar(log, "SELECT mqdb.is_allowed(%s, 'SEND', 'TOPIC', %s)", [SHOP, name]) for name in names}
        assert allowed == {
            name: not is_system_topic(name)
            and not is_group_topic(name)
            and any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in granted)
            for name in names
        }
