"""`mqdb spark`: jobs on Spark, each a function of `mqdb.pipeline` as a command.

`running` starts a Spark on this machine for them; on a cluster, call the function with a session of your own.

    archive, replay, reports, streams, package   the commands
"""

from mqdb.cli.options import Command, command_group
from mqdb.cli.spark import reports, streams
from mqdb.cli.spark.archive import archive
from mqdb.cli.spark.package import package
from mqdb.cli.spark.replay import replay

app = command_group(
    """Archive, replay, count and copy messages with Spark, which runs on this machine.

    Needs the extra: pip install "mqdb\\[spark]". Each command works on one
    broker; --broker says which, if the DSN lists several.

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
