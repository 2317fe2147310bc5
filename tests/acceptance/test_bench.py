"""`do.py bench produce | consume | latency | dispatch`: their output and what they leave behind.

The tests do not assert any speed.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from mqdb.store import migrations
from tests.fixtures.command_line import Place, Running
from tests.fixtures.postgres import Database, query
from tests.fixtures.processes import is_alive, wait_until

Figures = dict[str, dict[str, Any]]


class Cluster(NamedTuple):
    """A cluster of two brokers."""

    databases: tuple[Database, Database]

    @property
    def dsn(self) -> str:
        first, second = self.databases
        return f"broker-a={first.dsn};broker-b={second.dsn}"


@pytest.fixture
def cluster(database: Database, empty_database: Database) -> Cluster:
    migrations.upgrade(empty_database.dsn, broker_name="broker-b")
    return Cluster((database, empty_database))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, module="benchmarks.bench")


def bench(place: Place, *arguments: str) -> dict[str, Any]:
    outcome = place.run(*arguments, "--json")
    assert outcome.code == 0, outcome
    report: dict[str, Any] = json.loads(outcome.text)
    return report


def only(*names: str) -> list[str]:
    return [argument for name in names for argument in ("--only", name)]


def figures_of(report: dict[str, Any]) -> Figures:
    return {figure["name"]: figure for figure in report["figures"]}


def bound_of(goal: dict[str, Any]) -> float:
    bound: float = goal["at_least"] if "at_least" in goal else goal["at_most"]
    return bound


def count(database: Database, rows: str) -> int:
    number = query(database.dsn, f"SELECT count(*) FROM {rows}")
    assert isinstance(number, int)
    return number


def family_of(command: Running, size: int) -> list[psutil.Process]:
    """The command's process and its descendants, PostgreSQL included, once there are at least `size` of them."""

    def family() -> list[psutil.Process]:
        return psutil.Process(command.pid).children(recursive=True)

    wait_until(lambda: len(family()) >= size, seconds=60)
    return family()


def are_gone(processes: list[psutil.Process]) -> bool:
    return not any(is_alive(process.pid) for process in processes)


def assert_measured(figure: dict[str, Any], rounds: int) -> None:
    for side in (figure["measured"], *figure["references"]):
        assert len(side["rounds"]) == rounds
        assert min(side["rounds"]) > 0
    assert all(reference["ratio"] > 0 for reference in figure["references"])


@pytest.mark.long
def test_produce_shows_each_figure_beside_its_references(place: Place, database: Database) -> None:
    report = bench(place, "produce", "-c", "3", "-j", "2", "-T", "0.1", "--rounds", "1", "--dsn", database.dsn)

    figures = figures_of(report)
    assert list(figures) == [
        "append",
        "batch",
        "send",
        "send-batch",
        "send-async",
        "send-task",
        "send-64-tasks",
        "send-64",
    ]
    for figure in figures.values():
        assert_measured(figure, rounds=1)
    assert report["parameters"] == {
        "body_bytes": 200,
        "connections": 3,
        "jobs": 2,
        "seconds": 0.1,
        "batch": 100,
        "rounds": 1,
        "transaction_held_open": "no",
    }
    goals = {name: [bound_of(goal) for goal in figure["goals"]] for name, figure in figures.items()}
    assert goals == {
        "append": [0.8],
        "batch": [0.5],
        "send": [0.6, 3.0],
        "send-batch": [25_000, 0.5],
        "send-async": [],
        "send-task": [0.95],
        "send-64-tasks": [8.0],
        "send-64": [8.0, 0.5],
    }
    labels = {name: [reference["label"] for reference in figure["references"]] for name, figure in figures.items()}
    assert "COPY" in labels["send-batch"][1]
    assert labels["send-64"][0] == "the same, one thread"
    assert "hand-off" in labels["send-64"][1]
    assert "not measured, for --dsn names one broker only: brokers-2" in report["notes"]


@pytest.mark.long
def test_produce_waits_for_what_it_has_sent_asynchronously(place: Place, database: Database) -> None:
    report = bench(place, "produce", "--only", "send-async", "-T", "0.2", "--rounds", "1", "--dsn", database.dsn)

    rate = report["figures"][0]["measured"]["median"]
    # A round is over when all is stored, so it was a longer one.
    assert count(database, "mqdb.commit_log") >= rate * 0.2


@pytest.mark.long
def test_produce_measures_a_producer_over_two_brokers(place: Place, cluster: Cluster) -> None:
    report = bench(place, "produce", "--only", "brokers-2", "-T", "0.2", "--rounds", "2", "--dsn", cluster.dsn)

    (figure,) = report["figures"]
    assert_measured(figure, rounds=2)
    assert [bound_of(goal) for goal in figure["goals"]] == [0.85]
    assert report["notes"][-1].startswith("the topics of the benchmark are deleted")
    for database in cluster.databases:
        assert count(database, "mqdb.commit_log") > 0
        assert count(database, "mqdb.topic WHERE topic LIKE 'mqdb\\_bench%'") == 0


@pytest.mark.long
def test_consume_shows_pulls_and_a_push_consumer(place: Place, database: Database) -> None:
    given = ("consume", "--messages", "2000", "--rounds", "1", "--dsn", database.dsn)

    # A pull has messages at once, a consumer by and by; those of consume-2 have half of the time.
    pulls = figures_of(bench(place, *given, *only("pull-32", "pull-1000"), "-T", "0.1"))
    names = ["consume-32", "consume-1", "consume-orderly", "consume-once", "consume-async", "consume-poll"]
    consumers = figures_of(bench(place, *given, *only(*names), "-T", "1.5"))
    shared = figures_of(bench(place, *given, *only("consume-2"), "-T", "4"))

    assert [*pulls, *consumers, *shared] == ["pull-32", "pull-1000", *names, "consume-2"]
    for figure in (*pulls.values(), *consumers.values(), *shared.values()):
        assert_measured(figure, rounds=1)


@pytest.mark.long
def test_dispatch_measures_a_whole_backlog_and_its_key_index(place: Place, database: Database) -> None:
    report = bench(place, "dispatch", "--messages", "2500", "--rounds", "2", "--dsn", database.dsn)

    figures = figures_of(report)
    assert list(figures) == ["dispatch", "index"]
    for figure in figures.values():
        assert_measured(figure, rounds=2)
    assert query(database.dsn, "SELECT count(*) FROM mqdb.commit_log") == 5000
    assert query(database.dsn, "SELECT count(*) FROM mqdb.consume_queue") == 5000
    # One for the key of each message: ids of our own generator are found without.
    assert query(database.dsn, "SELECT count(*) FROM mqdb.message_index") == 5000


@pytest.mark.long
def test_latency_tells_the_percentiles_of_all_messages(place: Place, database: Database) -> None:
    report = bench(place, "latency", "--rate", "100", "-T", "0.5", "--rounds", "1", "--dsn", database.dsn)

    (figure, by_tasks) = report["figures"]
    details = figure["measured"]["details"]
    assert figure["unit"] == "ms"
    assert 0 < figure["measured"]["median"] <= details["p90_ms"] <= details["p99_ms"] <= details["max_ms"]
    assert figure["references"] == []
    assert [goal["of"] for goal in figure["goals"]] == ["value", "p99_ms"]
    assert by_tasks["references"][0]["label"] == "by threads"
    # The second of warming up, too, and the message that tells that the consumer has started; threads come twice.
    assert query(database.dsn, "SELECT count(*) FROM mqdb.commit_log") == 2 * 151 + 50


@pytest.mark.long
def test_latency_over_many_topics_tells_how_the_consumer_starts_and_idles(place: Place, database: Database) -> None:
    options = "--topics", "3", "--only", "latency-topics", "--rate", "50", "-T", "0.2", "--rounds", "1"
    report = bench(place, "latency", *options, "--dsn", database.dsn)

    [figure] = report["figures"]
    assert_measured(figure, rounds=1)
    assert figure["measured"]["details"].keys() >= {"start_s", "idle_cpu_percent", "p99_ms"}
    assert count(database, "mqdb.topic WHERE topic LIKE 'mqdb_bench%'") == 0


def test_pairs_compare_a_figure_with_itself_beside_an_open_transaction(place: Place, database: Database) -> None:
    report = bench(place, "dispatch", "--messages", "1000", "--only", "dispatch", "--pairs", "2", "--dsn", database.dsn)

    (figure,) = report["figures"]
    assert_measured(figure, rounds=2)
    assert figure["measured"]["label"].endswith("a transaction is held open")
    assert [goal["at_least"] for goal in figure["goals"]] == [0.9]
    left = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'mqdb bench%'"
    wait_until(lambda: query(database.dsn, left) == 0)


@pytest.mark.parametrize(
    ("arguments", "queues"),
    [
        (("produce", "--only", "send", "-T", "0.2"), 1),
        pytest.param(("consume", "--only", "consume-32", "--messages", "2000", "-T", "5"), 8, marks=pytest.mark.long),
        pytest.param(("latency", "--only", "latency", "--rate", "50", "-T", "0.4"), 4, marks=pytest.mark.long),
    ],
)
def test_a_send_to_each_queue_is_held_open_meanwhile_and_rolled_back(
    place: Place, database: Database, arguments: tuple[str, ...], queues: int
) -> None:
    report = bench(place, *arguments, "--hold-send", "--pairs", "1", "--dsn", database.dsn)

    (figure,) = report["figures"]
    assert_measured(figure, rounds=1)
    assert report["parameters"]["transaction_held_open"] == "in every other round, with a send in it"
    # A position that was taken in a transaction is gone with its rollback.
    taken = query(database.dsn, "SELECT last_value FROM mqdb.log_pos")
    assert taken == count(database, "mqdb.commit_log") + queues


def test_nothing_but_records_stays_in_a_database_that_was_given(place: Place, database: Database) -> None:
    given = ("--messages", "500", "-T", "0.1", "--rounds", "1", "--dsn", database.dsn)
    bench(place, "consume", *only("pull-32", "consume-32", "consume-once"), *given)

    assert query(database.dsn, "SELECT count(*) FROM mqdb.topic WHERE topic LIKE 'mqdb\\_bench%'") == 0
    assert query(database.dsn, "SELECT count(*) FROM mqdb.subscription_group") == 0
    assert query(database.dsn, "SELECT count(*) FROM pg_namespace WHERE nspname = 'mqdb_bench'") == 0
    assert query(database.dsn, "SELECT count(*) FROM mqdb.commit_log") == 500


@pytest.mark.long
def test_without_a_dsn_it_runs_on_a_server_of_its_own_and_removes_it(place: Place, database: Database) -> None:
    elsewhere = Place(place.home, database.dsn, module=place.module)

    with elsewhere.running("produce", "--only", "append", "-T", "0.1", "--rounds", "1", "-c", "2") as command:
        family = family_of(command, 8)
        output, errors = command.process.communicate(timeout=60)

    assert command.process.returncode == 0, errors
    assert "embedded, fresh" in output
    assert "INSERT without index" in output
    assert "ratio ≥ 0.8" in output
    assert query(database.dsn, "SELECT count(*) FROM mqdb.commit_log") == 0
    assert list(place.home.iterdir()) == []
    wait_until(lambda: are_gone(family))


@pytest.mark.long
def test_an_interrupted_benchmark_takes_its_processes_with_it(place: Place) -> None:
    with place.running("latency", "-T", "60") as command:
        # Three workers, the resource tracker of Python, PostgreSQL and a dozen children.
        family = family_of(command, 14)

        code, errors = command.interrupt()

    assert (code, errors) == (130, "")
    wait_until(lambda: are_gone(family))


def test_it_refuses_a_figure_that_does_not_exist(place: Place) -> None:
    outcome = place.run("produce", "--only", "copy")

    assert outcome.code == 1
    figures = "append, batch, send, send-batch, send-async, send-task, send-64-tasks, send-64, brokers-2"
    assert outcome.errors == f"mqdb: --only = 'copy': the figures are {figures}\n"


def test_it_refuses_more_brokers_than_it_can_use(place: Place, cluster: Cluster) -> None:
    outcome = place.run("consume", "--dsn", cluster.dsn)

    assert outcome.code == 1
    assert "names 2 brokers; consume takes 1" in outcome.errors
