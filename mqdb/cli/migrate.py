"""`mqdb migrate`: create the schema, bring it to this version, or say where it stands."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.options import start
from mqdb.errors import SettingInvalid

if TYPE_CHECKING:
    from mqdb.settings import Settings


def migrate(
    context: typer.Context,
    current: Annotated[bool, typer.Option("--current", help="Only say at which version the database is.")] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Only print the SQL, for those who apply it by hand.")] = False,
    broker_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Give the broker this name.", show_default=False)
    ] = None,
) -> None:
    """Create the schema mqdb, or bring it to the version that this mqdb speaks.

    All in one transaction. [bold]mqdb serve[/bold] does the same when it
    starts. An embedded PostgreSQL that does not run is started for as long as
    it takes.

    \b
    [bold]Examples[/bold]
      mqdb migrate
      mqdb migrate --current
      mqdb migrate --sql > mqdb.sql
      mqdb migrate --dsn postgresql://mqdb@db.example.org/mqdb --broker-name broker-b
    """
    from mqdb.store import migrations

    if sql:
        print(migrations.upgrade_sql())
        return
    from mqdb.dsn import is_broker_name

    settings = start(context)
    if broker_name is not None and not is_broker_name(broker_name):
        raise SettingInvalid("broker_name", broker_name, "argument", "use letters, digits, and _ . - after the first")
    with ExitStack() as resources:
        dsn = _dsn(settings, resources)
        before = _revision(dsn)
        if current:
            print(_standing(before, migrations.head()))
            return
        migrations.upgrade(dsn, broker_name=broker_name)
        after = _revision(dsn)
    print(f"the schema is at {after}" if before == after else f"the schema went from {before or 'nothing'} to {after}")


def _dsn(settings: "Settings", resources: ExitStack) -> str:
    if settings.broker is not None:
        return settings.broker.dsn
    from mqdb.embedded import open_or_attach

    return resources.enter_context(open_or_attach(settings.home, port=settings.port)).dsn


def _revision(dsn: str) -> str | None:
    from mqdb.dsn import redact
    from mqdb.store import migrations
    from mqdb.store.engine import create_engine, translated

    engine = create_engine(dsn, application_name="mqdb migrate", pool_size=1)
    try:
        with translated(redact(dsn)), engine.connect() as connection:
            return migrations.current(connection)
    finally:
        engine.dispose()


def _standing(revision: str | None, head: str) -> str:
    if revision is None:
        return f"no schema mqdb; this mqdb speaks {head}"
    return f"{revision}, the newest" if revision == head else f"{revision}; this mqdb speaks {head}"
