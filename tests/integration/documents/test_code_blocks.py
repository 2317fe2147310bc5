"""Every code block in the README and the pages of docs runs here or in a named test, or is checked.

A Python block that does not run is compiled, and its imports from mqdb exist. An mqdb command is parsed by the command
line. Blocks in other languages are parsed by the tools for which they are written.
"""

import ast
import importlib
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import psycopg
import pytest
import typer
import yaml

import do
from mqdb.cli.app import app
from mqdb.settings import unknown_variables
from mqdb_client import ConsumeFromWhere, LitePullConsumer, Message, Producer
from tests.fixtures import warm_process
from tests.fixtures.command_line import Place, served
from tests.fixtures.deploy_tools import run_tool
from tests.fixtures.grpc_client import GrpcFronts
from tests.fixtures.log import Connection, create_topic, dispatch_all
from tests.fixtures.page_programs import PROGRAMS, Program, prepare, text_of
from tests.fixtures.pages import ROOT, Block, block_with, blocks
from tests.fixtures.postgres import KNOW_ITSELF, Database
from tests.fixtures.processes import wait_until
from tests.fixtures.roles import MakeRole

BLOCKS: Final = blocks()

#: Blocks that other tests run word for word: the page, its languages, words of the block, and the test.
RUN_ELSEWHERE: Final = (
    ("docs/tutorial.md", "python console text", "", "tests/acceptance/test_tutorial.py"),
    ("docs/outbox.md", "python console sql", "", "tests/integration/documents/test_outbox_page.py"),
    ("docs/applications.md", "python", "# shop/", "tests/integration/documents/test_applications_page.py"),
    ("docs/applications.md", "python", "# tests/test_tasks.py", "tests/acceptance/test_testing_plugin.py"),
    ("docs/testing.md", "python", "", "tests/acceptance/test_testing_plugin.py"),
    ("docs/asyncio.md", "python", "# asyncpg", "tests/integration/documents/test_asyncpg_transaction.py"),
    ("docs/failures.md", "python", "", "tests/acceptance/test_failures_page.py"),
    ("docs/failures.md", "sql text", "", "tests/acceptance/test_failures_page.py"),
    ("docs/failures.md", "console", "$ python billing.py", "tests/acceptance/test_failures_page.py"),
    ("docs/backup.md", "bash", "", "tests/acceptance/test_backup_page.py"),
    ("docs/upgrade.md", "sh", "", "tests/integration/documents/test_upgrade_page.py"),
    ("docs/spark.md", "python sh", "job.py", "tests/spark/test_submitting.py"),
    ("docs/spark.md", "sh", "venv-pack", "tests/spark/test_submitting.py"),
    ("docs/spark.md", "python", 'read_jdbc(spark, dsn, "orders").count()', "tests/spark/test_jdbc.py"),
    ("docs/spark.md", "sql", "USING mqdb", "tests/spark/test_sql_page.py"),
    ("docs/spark.md", "sql", "FROM tags_and_bodies", "tests/spark/test_sql_page.py"),
    ("docs/spark.md", "python", "FROM STREAM", "tests/spark/test_sql_page.py"),
    ("docs/spark.md", "python sh", "/data/checkpoints/customer", "tests/spark/test_table_loading.py"),
    ("docs/spark.md", "sh", "mqdb spark mirror", "tests/spark/test_streams.py"),
)

#: Blocks that tests below run, beside those of `PROGRAMS`.
RUN_HERE: Final = (
    ("README.md", "console", "mqdb consume"),
    ("README.md", "python", "@app.cron"),
    ("README.md", "sql", ""),
    ("docs/applications.md", "python", "app.send("),
    ("docs/how-it-works.md", "sql", ""),
    ("docs/rocketmq-5-sdks.md", "python", ""),
    ("docs/security.md", "sql", ""),
    ("docs/spark.md", "sql", "SET LOGGED"),
    ("docs/worker-pools.md", "sql", ""),
)

#: Blocks of commands that run here, one after the other, on a broker with the topics of `prepare` and with some roles.
#: What they print is not compared.
COMMANDS: Final = (
    ("docs/access.md", "console", ""),
    ("docs/filters.md", "console", ""),
    ("docs/rocketmq-clients.md", "console", ""),
    ("docs/scheduling.md", "console", ""),
    ("docs/worker-pools.md", "console", ""),
)
ROLES: Final = ("shop", "billing", "audit", "ada", "grace", "shop_app", "market_app")

#: Commands that are not mqdb's, and the reasons why they do not run here.
OTHER_COMMANDS: Final = {
    "pip": "installs packages",
    "export": "sets variables for the next commands",
    "echo": "prints the exit code of the command before",
    "curl": "reads a page that tests/integration/web reads",
    "python": "starts a program of examples, which tests/acceptance/test_examples.py tests",
    "uvicorn": "serves examples/fastapi_shop, which has a test",
    "flask": "serves examples/flask_shop, which has a test",
}

#: Languages that are not read here, and the tests that run such programs.
NOT_READ: Final = {"java": "tests/remoting", "diff": "tests/unit/test_spark_from_kafka_page.py"}


def way_of(block: Block) -> str:
    """The test or the check that covers a block."""
    ways = [
        test
        for page, languages, words, test in RUN_ELSEWHERE
        if page == block.page and block.language in languages.split() and words in block.text
    ]
    ways += ["runs here" for each in PROGRAMS if is_of(block, (each.page, "python", each.words))]
    ways += ["runs here" for each in (*RUN_HERE, *COMMANDS) if is_of(block, each)]
    assert len(ways) <= 1, (str(block), ways)
    return ways[0] if ways else "is read"


def is_of(block: Block, where: tuple[str, str, str]) -> bool:
    page, language, words = where
    return (page, language) == (block.page, block.language) and words in block.text


def to_read(*languages: str) -> list[Any]:
    """The blocks in these languages that no test runs."""
    found = [block for block in BLOCKS if block.language in languages and way_of(block) == "is read"]
    return [pytest.param(block, id=str(block)) for block in found]


def test_each_block_has_a_language_in_which_it_runs_or_is_read() -> None:
    known = {"python", "console", "sh", "bash", "sql", "yaml", *NOT_READ}

    unknown = [str(block) for block in BLOCKS if way_of(block) == "is read" and block.language not in known]

    assert unknown == []
    assert [str(block) for block in BLOCKS if way_of(block) == "is read" and block.language in ("sql", "bash")] == []


@pytest.mark.parametrize("test", sorted({test for *_, test in RUN_ELSEWHERE}))
def test_a_test_that_runs_blocks_is_there_and_reads_the_page(test: str) -> None:
    text = (ROOT / test).read_text(encoding="utf-8")
    pages = {page for page, *_, each in RUN_ELSEWHERE if each == test}

    for page in pages:
        assert Path(page).name in text or "spark_page import blocks" in text


@pytest.mark.parametrize("where", [*RUN_ELSEWHERE, *RUN_HERE, *COMMANDS], ids=lambda where: " ".join(where[:3]))
def test_each_line_of_these_tables_names_blocks(where: tuple[str, ...]) -> None:
    page, languages, words, *_ = where

    for language in languages.split():
        assert any(is_of(block, (page, language, words)) for block in BLOCKS), language


# -- blocks that are read -------------------------------------------------------------------------


@pytest.mark.parametrize("block", to_read("python"))
def test_a_python_block_is_compiled_and_what_it_imports_exists(block: Block) -> None:
    tree = compile(block.text, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)

    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("mqdb"):
            module = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


@pytest.mark.parametrize("block", to_read("console", "sh"))
def test_a_command_is_one_that_its_program_takes(block: Block) -> None:
    lines = block.text.replace("\\\n", "").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)
        variables = [word for word in words if re.match(r"MQDB_\w+=", word)]
        assert unknown_variables({word.partition("=")[0]: "given" for word in variables}) == []
        while words[0] in variables:
            del words[0]
        check_command(*words)


def check_command(program: str, *arguments: str) -> None:
    """Fail if the command is wrong, as far as can be seen without running it."""
    if program == "mqdb":
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands"):
            name, *arguments = arguments  # type: ignore[assignment]
            command = command.commands[name]
        command.make_context(command.name, list(arguments))
    elif arguments[0] == "do.py":
        assert f"python3 do.py {arguments[1]} " in str(do.__doc__)
    else:
        assert program in OTHER_COMMANDS
        assert program != "python" or arguments[:2] == ("-m", "django") or (ROOT / arguments[0]).is_file()


@pytest.mark.parametrize("block", to_read("yaml"))
def test_a_block_of_yaml_is_taken_by_its_program(block: Block, tmp_path: Path) -> None:
    content = yaml.safe_load(block.text)
    if "scrape_configs" in content:
        (tmp_path / "prometheus.yml").write_text(block.text)
        run_tool("promtool", "check", "config", "--syntax-only", tmp_path / "prometheus.yml")
    else:
        container = {"name": "mqdb", "image": "mqdb"} | content
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mqdb"}, "spec": {"containers": [container]}}
        kubernetes_validate.validate(pod, "1.35", strict=True)


def test_the_diff_of_a_page_makes_a_program() -> None:
    [block] = [block for block in BLOCKS if block.language == "diff"]

    compile("\n".join(line[1:] for line in block.text.splitlines() if not line.startswith("-")), str(block), "exec")


# -- programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_program_of_a_page_works(program: Program, log: Connection, database: Database, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(text_of(program, block_with(program.page, program.words).text))
    prepare(database.dsn, without=("orders",) if "topics.create" in path.read_text() else ())
    place = Place(tmp_path, database.dsn)

    with (
        Producer("feeding", database.dsn) as producer,
        open(tmp_path / "printed", "w+") as printed,
        open(tmp_path / "errors", "w+") as errors,
        warm_process.start(
            [sys.executable, str(path)], stdin=subprocess.DEVNULL, stdout=printed, stderr=errors, env=place.environ({})
        ) as process,
    ):

        def has_worked() -> bool:
            if program.feeds is not None:
                producer.send(Message(program.feeds, b'{"total": 42, "account": 7}', tag="paid", keys="17"))
            log.execute("SELECT FROM mqdb.dispatch(1000)")  # another session may be dispatching
            has_printed = program.prints in (tmp_path / "printed").read_text()
            is_over = process.poll() is not None
            return is_over if not program.runs_on else is_over or (has_printed and bool(database.rows(program.sees)))

        try:
            wait_until(has_worked)
            if program.runs_on:
                process.send_signal(signal.SIGINT)
            code = process.wait(30)
        finally:
            process.kill()
    dispatch_all(log)

    assert (code, (tmp_path / "errors").read_text()) == (0, "")
    assert program.prints in (tmp_path / "printed").read_text()
    assert database.rows(program.sees)


def test_the_application_of_readme_consumes(database: Database, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(block_with("README.md", "@app.cron").text)
    place = Place(tmp_path, database.dsn)
    place.done("topic", "create", "orders")
    command = [sys.executable, "-m", "mqdb", "worker", "tasks:app"]
    pipe = subprocess.PIPE
    process = warm_process.start(command, stdout=pipe, stderr=pipe, text=True, env=place.environ({}), cwd=str(tmp_path))
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            while "a worker consumes" not in process.stderr.readline():
                assert process.poll() is None
            place.done("send", "orders", "one", "--tag", "paid", "--key", "17")
            while "cron report" not in (line := process.stdout.readline()) and line:
                pass
            assert process.stdout.readline() == "paid ('17',) b'one'\n"
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_an_application_sends_from_another_program(database: Database, log: Connection, tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "tasks.py").write_text(block_with("docs/applications.md", "# shop/tasks.py").text)
    (tmp_path / "program.py").write_text(block_with("docs/applications.md", "app.send(").text)
    create_topic(log, "orders")
    environ = Place(tmp_path, database.dsn).environ({})

    with warm_process.start([sys.executable, str(tmp_path / "program.py")], env=environ) as process:
        assert process.wait(30) == 0

    dispatch_all(log)
    assert database.rows("SELECT tags, text FROM mqdb.message") == [("paid", '{"number":17,"total":42.0}')]


@pytest.mark.parametrize("page", [page for page, *_ in COMMANDS])
def test_the_commands_of_a_page_work(
    page: str, database: Database, log: Connection, role: MakeRole, tmp_path: Path
) -> None:
    prepare(database.dsn)
    log.execute(KNOW_ITSELF)
    for name in ROLES:
        role(name)
    (tmp_path / "rights.toml").write_text('[audit]\nread = ["*"]\n')
    place = Place(tmp_path, database.dsn)

    for block in BLOCKS:
        if is_of(block, (page, "console", "")):
            for line in re.findall(r"^\$ mqdb (.*)$", block.text, re.MULTILINE):
                arguments = shlex.split(line.replace("rights.toml", f"{tmp_path}/rights.toml --yes"), comments=True)
                outcome = place.call(*arguments)
                assert outcome.code == 0, (line, outcome)


def test_an_sdk_of_rocketmq_sends(grpc_fronts: GrpcFronts, database: Database, log: Connection, tmp_path: Path) -> None:
    block = block_with("docs/rocketmq-5-sdks.md", "ClientConfiguration")
    assert "127.0.0.1:8081" in block.text
    create_topic(log, "orders")
    front = grpc_fronts.start()
    program = block.text.replace("127.0.0.1:8081", str(front.address))
    # It logs into the home directory.
    environ = Place(tmp_path, database.dsn).environ({"HOME": str(tmp_path)})

    command = [sys.executable, "-c", f"{program}producer.shutdown()"]
    subprocess.run(command, env=environ, cwd=tmp_path, check=True, timeout=60)

    dispatch_all(log)
    assert database.rows("SELECT topic, text FROM mqdb.message") == [("orders", "one")]


def test_the_commands_of_readme_print_what_it_shows(database: Database, tmp_path: Path) -> None:
    block = block_with("README.md", "mqdb consume", "console")

    with served(Place(tmp_path, database.dsn)) as place:
        for step in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, *expected = step.splitlines()
            printed = place.done(*shlex.split(command)[1:]).splitlines()
            # What the other commands print is not shown.
            assert printed == expected or not expected


# -- SQL ------------------------------------------------------------------------------------------


def test_the_transaction_of_readme_sends(database: Database, log: Connection) -> None:
    prepare(database.dsn)
    block = block_with("README.md", "SELECT mqdb.send", "sql")
    transaction, query = block.text.split("COMMIT;")

    log.execute(f"{transaction}COMMIT;".encode())
    dispatch_all(log)

    [(_, offset, tag, keys, text, _)] = log.execute(query.encode()).fetchall()
    assert (offset, tag, keys, text) == (0, "paid", "17", '{"total": 42}')
    assert database.rows("SELECT balance FROM account") == [(58,)]


def test_each_step_of_a_message_is_a_row(database: Database, log: Connection) -> None:
    prepare(database.dsn)
    block = block_with("docs/how-it-works.md", "mqdb.commit_log", "sql")
    log.execute("SELECT mqdb.send('orders', 'one'::text)")
    dispatch_all(log)
    consumer = LitePullConsumer("reading", database.dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders")
    with consumer:
        wait_until(consumer.poll)
        consumer.commit()

    for statement in block.text.strip().split(";")[:-1]:
        assert len(log.execute(statement.encode()).fetchall()) >= 1, statement


def test_workers_of_any_language_pop(database: Database, log: Connection, tmp_path: Path) -> None:
    prepare(database.dsn)
    block = block_with("docs/worker-pools.md", "mqdb.pop", "sql")
    first, tagged, ack, later, batches = (each for each in block.text.split("\n") if each)
    Place(tmp_path, database.dsn).done("group", "set", "workers", "--consume-mode", "pop", "--consume-from", "first")
    for number in (1, 2):
        log.execute("SELECT mqdb.send('thumbnails', %s::text, tag => 'png')", [str(number)])
    dispatch_all(log)

    [(_, handle)] = log.execute(tagged.encode()).fetchall()
    [(_, other)] = log.execute(first.encode()).fetchall()
    assert log.execute(ack.replace("…", handle).encode()).fetchall() == [([True],)]
    [([renewed],)] = log.execute(later.replace("…", other).encode()).fetchall()
    assert renewed not in (None, other)
    assert log.execute(batches.encode()).fetchall() != []


def test_sink_tables_become_logged(database: Database, log: Connection) -> None:
    log.execute(block_with("docs/spark.md", "SET LOGGED", "sql").text.encode())

    assert database.rows("SELECT relpersistence FROM pg_class WHERE relname IN ('sink_write', 'sink_stage')") == [
        ("p",),
        ("p",),
    ]


def test_an_event_trigger_refuses_tables_of_others(database: Database, role: MakeRole) -> None:
    dsn = role("shop")
    superuser = database.connect_as_superuser()
    superuser.execute("GRANT CREATE ON SCHEMA public TO shop")
    superuser.execute(block_with("docs/security.md", "EVENT TRIGGER", "sql").text.encode())

    with psycopg.connect(dsn) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("CREATE TABLE other (id int)")
    database.connect().execute("CREATE TABLE mine (id int)")
