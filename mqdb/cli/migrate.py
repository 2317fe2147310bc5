"""`mqdb migrate`: create the schema, upgrade it to this version, or show its version."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.options import start
from mqdb.errors import BrokerUnavailable, ParameterInvalid, SettingInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mqdb.common.dsn import BrokerDsn
    from mqdb.settings import Settings


def migrate(
    context: typer.Context,
    current: Annotated[
        bool, typer.Option("--current", help="Only print the version of the database's schema.")
    ] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Only print the SQL, to be applied by hand.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="With --sql: the version of the schema to start from.", show_default=False
        ),
    ] = None,
    broker_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Set this name for the broker, if there is only one.", show_default=False),
    ] = None,
) -> None:
    """Create the schema mqdb, or upgrade it to the version that this mqdb uses.

    The migration is one transaction. [bold]mqdb serve[/bold] also migrates the schema when it starts. If the embedded
    PostgreSQL does not run, it is started for the migration. If the DSN lists several brokers, they are migrated one
    after another, and a new broker gets its name from the list.

    \b
    [bold]Examples[/bold]
      mqdb migrate
      mqdb migrate --current
      mqdb migrate --sql > mqdb.sql
      mqdb migrate --dsn postgresql://mqdb@b/mqdb --broker-name broker-b
      mqdb migrate --dsn 'a=postgresql://mqdb@a/mqdb;b=postgresql://mqdb@b/mqdb'
    """
    from mqdb.store import migrations
    from mqdb_client.admin.answers import ask_each

    if sql:
        print(migrations.upgrade_sql(since))
        return
    if since is not None:
        raise ParameterInvalid(
            "since", since, "only applies to --sql; the version of a database is read from the database"
        )
    settings = start(context)
    _check_name(broker_name, settings)
    with ExitStack() as resources:
        if current:
            _check_is_there(settings)
        brokers = _brokers(settings, resources)

        def migrate_one(broker: "BrokerDsn") -> None:
            before = _revision(broker.dsn)
            if current:
                outcome = _standing(before, migrations.head())
            else:
                is_new = before is None
                migrations.upgrade(
                    broker.dsn,
                    broker_name=broker_name or (broker.name if is_new else None),
                    cluster_name=settings.cluster_name if is_new else None,
                )
                outcome = _progress(before, _revision(broker.dsn))
            print(f"{broker.name}: {outcome}" if len(brokers) > 1 else outcome)

        ask_each(brokers, migrate_one).check()


def _check_name(broker_name: str | None, settings: "Settings") -> None:
    from mqdb.common.dsn import is_broker_name

    if broker_name is None:
        return
    if not is_broker_name(broker_name):
        raise SettingInvalid("broker_name", broker_name, "argument", "use letters, digits, and _ . @ - after the first")
    if len(settings.brokers) > 1:
        raise ParameterInvalid(
            "broker_name", broker_name, "is for one broker; in a list, each broker already has a name"
        )


def _check_is_there(settings: "Settings") -> None:
    """Raise BrokerUnavailable if the home has no database, because looking for one must not create it."""
    from mqdb.embedded import Home, wait_while_starting
    from mqdb.embedded.home import data_version

    if not settings.brokers:
        wait_while_starting(Home(settings.home))
    if not settings.brokers and data_version(Home(settings.home)) is None:
        reason = "there is no database in this home yet; create it with `mqdb serve`, or set MQDB_DSN"
        raise BrokerUnavailable(str(settings.home), reason)


def _brokers(settings: "Settings", resources: ExitStack) -> "Sequence[BrokerDsn]":
    if settings.brokers:
        return settings.brokers
    from mqdb.common.dsn import BrokerDsn
    from mqdb.embedded import Home, attach, open_or_attach, wait_while_starting

    wait_while_starting(Home(settings.home))
    running = attach(settings.home)
    if running is not None:  # possibly without an owner: the next broker adopts it
        return (BrokerDsn(settings.broker_name, running.dsn),)
    postgres = resources.enter_context(open_or_attach(settings.home, port=settings.port))
    return [BrokerDsn(settings.broker_name, postgres.dsn)]


def _revision(dsn: str) -> str | None:
    from mqdb.store import migrations
    from mqdb.store.engine import connected
    from mqdb.store.server_choice import ServerRole

    with connected(dsn, "mqdb migrate", ServerRole.ANY) as connection:
        return migrations.current(connection)


def _standing(revision: str | None, head: str) -> str:
    if revision is None:
        return f"no schema mqdb; this mqdb uses {head}"
    return f"{revision}, the newest" if revision == head else f"{revision}; this mqdb uses {head}"


def _progress(before: str | None, after: str | None) -> str:
    return f"the schema is at {after}" if before == after else f"the schema went from {before or 'nothing'} to {after}"
