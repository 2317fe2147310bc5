"""`mqdb spark`: Spark jobs as commands; each calls a function of `mqdb.pipeline`.

`running` starts Spark on this machine for the jobs; on a cluster, call the function with your own session.

    archive, replay, reports, streams, package   the commands
"""

from mqdb.cli.options import Command, command_group
from mqdb.cli.spark import reports, streams
from mqdb.cli.spark.archive import archive
from mqdb.cli.spark.package import package
from mqdb.cli.spark.replay import replay

app = command_group(
    """Archive, replay, count and copy messages with Spark on this machine.

    This needs the extra: pip install "mqdb\\[spark]". Each command works on one broker; --broker chooses it if the DSN
    lists several.

    \b
    [bold]Examples[/bold]
      mqdb spark archive /data/archive
      mqdb spark replay orders orders_again --write-id again-1 --since 2h
      mqdb spark dlq-report --since 7d --html dead.html
      mqdb spark stats orders
      mqdb spark to-table customers public.customer --checkpoint /data/c1
      mqdb spark mirror orders --from-kafka kafka:9092 --checkpoint /data/c2
      mqdb spark package mqdb.zip
    """
)


for function in (archive, replay, package):
    app.command(cls=Command)(function)
reports.register(app)
streams.register(app)
