"""`mqdb spark to-table | to-parquet | mirror`: streams as commands that end once they have caught up."""

from typing import TYPE_CHECKING, Annotated

import typer

from mqdb.cli.options import Command, start
from mqdb.cli.rows import Json, Row, print_rows
from mqdb.cli.spark.running import DEFAULT_CORES, Cores, OneBroker, bar, chosen_broker, spark_session
from mqdb.errors import ParameterInvalid

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from mqdb.pipeline.jobs.catching_up import OnProgress

Checkpoint = Annotated[
    str,
    typer.Option(
        "--checkpoint",
        metavar="PATH",
        help="The place for the progress of the job: a folder, or a URI that Spark can open.",
        show_default=False,
    ),
]
Follow = Annotated[bool, typer.Option("--follow", help="Continue with new messages until Ctrl+C.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count the messages that the job would read now.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Maximum number of messages in a transaction.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic of the broker.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands to `mqdb spark`."""
    for function in (to_table, to_parquet, mirror):
        app.command(cls=Command)(function)


def to_table(
    context: typer.Context,
    topic: Topic,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="An existing PostgreSQL table.", show_default=False)],
    checkpoint: Checkpoint,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", metavar="DSN", help="The database of the table, if it is not the broker's.", show_default=False
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="NAME", help="Write only this column; may be repeated.", show_default=False),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="NAME",
            help="Column of the key, if it is not the primary key; may be repeated.",
            show_default=False,
        ),
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Add a row for each message, without replacing rows.")
    ] = False,
    messages: Annotated[
        bool, typer.Option("--messages", help="Write the parts of each message instead of the fields of its body.")
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip messages that cannot become a row, and count them.")
    ] = False,
    batch: Batch = 100_000,
    follow: Follow = False,
    dry_run: DryRun = False,
    cores: Cores = DEFAULT_CORES,
    broker: OneBroker = None,
    as_json: Json = False,
) -> None:
    """Maintain a PostgreSQL table from a topic: one row for each key, from its newest message.

    Bodies are JSON objects, whose fields go to the columns with the same names. A message with a null value deletes the
    row of its key. If the body lacks the key, it is taken from the message key, which is a JSON object or the value
    itself. Messages with the same key have to be in one queue, which is the case if producers send them with keys.

    Each message takes effect once. If a killed job is run again with the same checkpoint, it continues at its last
    position. A table [bold]mqdb_spark_batch[/bold], which lists the finished batches, is created in the schema of the
    table.

    \b
    [bold]Examples[/bold]
      mqdb spark to-table customers public.customer --checkpoint /data/c1
      mqdb spark to-table customers public.customer --checkpoint /data/c1 --dry-run
      mqdb spark to-table orders orders --checkpoint /data/c2 --key id --follow
      mqdb spark to-table orders log --checkpoint /data/c3 --messages --append
    """
    settings = start(context)
    one = chosen_broker(settings, broker)
    from mqdb.pipeline.jobs import table_loading

    load = table_loading.TableLoad(
        one.dsn, topic, table, target, columns, key, append=append, messages=messages, skip_bad=skip_bad, batch=batch
    )
    planned = table_loading.plan_table(load)
    row: Row = {"topic": topic, "table": f"{planned.schema}.{planned.name}", "key": ",".join(planned.key) or None}
    with bar("counting" if dry_run else "loading") as shown, spark_session(cores) as spark:
        if dry_run:
            row["messages"] = table_loading.count_to_table(spark, load, checkpoint)
        else:
            result = table_loading.to_table(spark, load, checkpoint, follow=follow, on_progress=_showing(*shown))
            row |= {"messages": result.messages, "skipped": result.skipped}
    print_rows([row], as_json, "")


def to_parquet(
    context: typer.Context,
    topic: Topic,
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A folder, or a URI that Spark can open: s3a://...", show_default=False),
    ],
    checkpoint: Checkpoint,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="DDL",
            help="Fields of JSON bodies, which are written to a column named value.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Maximum number of messages in a file.")] = 1_000_000,
    follow: Follow = False,
    dry_run: DryRun = False,
    cores: Cores = DEFAULT_CORES,
    broker: OneBroker = None,
    as_json: Json = False,
) -> None:
    """Append the messages of a topic to Parquet files, each message once.

    If a killed job is run again with the same checkpoint, it continues at its last position. Spark reads from
    PATH/_spark_metadata which files are valid; a killed job may leave other files.

    \b
    [bold]Examples[/bold]
      mqdb spark to-parquet orders /data/orders --checkpoint /data/c1
      mqdb spark to-parquet orders /data/orders --checkpoint /data/c1 --dry-run
      mqdb spark to-parquet orders s3a://b/orders --checkpoint s3a://b/c1 --follow
      mqdb spark to-parquet orders /data/o --checkpoint /data/c2 --schema 'id BIGINT'
    """
    settings = start(context)
    one = chosen_broker(settings, broker)
    from mqdb.pipeline.jobs import parquet_appending

    with bar("counting" if dry_run else "appending") as shown, spark_session(cores) as spark:
        if dry_run:
            read = parquet_appending.count_to_parquet(spark, one.dsn, topic, checkpoint)
        else:
            read = parquet_appending.to_parquet(
                spark, one.dsn, topic, path, checkpoint,
                schema=schema, batch=batch, follow=follow, on_progress=_showing(*shown),
            )  # fmt: skip
    print_rows([{"topic": topic, "path": path, "messages": read}], as_json, "")


def mirror(
    context: typer.Context,
    topic: Topic,
    checkpoint: Checkpoint,
    from_kafka: Annotated[
        str | None,
        typer.Option("--from-kafka", metavar="SERVERS", help="Copy from Kafka to the broker.", show_default=False),
    ] = None,
    to_kafka: Annotated[
        str | None,
        typer.Option("--to-kafka", metavar="SERVERS", help="Copy from the broker to Kafka.", show_default=False),
    ] = None,
    kafka_topic: Annotated[
        str | None,
        typer.Option(
            "--kafka-topic", metavar="NAME", help="The Kafka topic, if it has a different name.", show_default=False
        ),
    ] = None,
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="Copy partition 3 to queue 3, and vice versa.")
    ] = False,
    kafka_options: Annotated[
        list[str] | None,
        typer.Option(
            "--kafka-option",
            metavar="NAME=VALUE",
            help="An option of Spark's connector; may be repeated.",
            show_default=False,
        ),
    ] = None,
    packages: Annotated[
        str | None,
        typer.Option(
            "--packages",
            metavar="COORDINATES",
            help="Maven name of Spark's Kafka connector; if not given, the one for this Spark version.",
            show_default=False,
        ),
    ] = None,
    batch: Batch = 100_000,
    follow: Follow = False,
    dry_run: DryRun = False,
    cores: Cores = DEFAULT_CORES,
    broker: OneBroker = None,
    as_json: Json = False,
) -> None:
    """Copy a topic from Kafka to the broker or vice versa, with keys, headers and nulls.

    Each record is stored exactly once in the broker, but at least once in Kafka, because Kafka's sink may repeat the
    batch during which a job was killed. If a killed job is run again with the same checkpoint, it continues at its last
    position. The topic TOPIC has to exist. Names of mqdb's topics cannot contain dots; use --kafka-topic if the name in
    Kafka has dots.

    \b
    [bold]Examples[/bold]
      mqdb spark mirror orders --from-kafka kafka:9092 --checkpoint /data/c1
      mqdb spark mirror orders --from-kafka kafka:9092 --kafka-topic shop.orders \\
          --checkpoint /data/c1 --dry-run
      mqdb spark mirror orders --to-kafka kafka:9092 --checkpoint /data/c2 --follow
      mqdb spark mirror orders --to-kafka kafka:9093 --checkpoint /data/c3 \\
          --kafka-option kafka.security.protocol=SSL
    """
    servers = from_kafka or to_kafka
    if servers is None or (from_kafka and to_kafka):
        raise ParameterInvalid("--from-kafka", from_kafka or "", "give either --from-kafka or --to-kafka")
    options = dict(map(_option, kafka_options or ()))
    settings = start(context)
    one = chosen_broker(settings, broker)
    from mqdb.pipeline.jobs import mirroring

    chosen = mirroring.Mirror(
        one.dsn, topic, servers, kafka_topic or topic, keep_partitions=keep_partitions, batch=batch, options=options
    )
    config = {"spark.jars.packages": packages or mirroring.package()}
    with bar("counting" if dry_run else "copying") as shown, spark_session(cores, config) as spark:
        if dry_run:
            count = mirroring.count_from_kafka if from_kafka else mirroring.count_to_kafka
            copied = count(spark, chosen, checkpoint)
        else:
            copy = mirroring.mirror_from_kafka if from_kafka else mirroring.mirror_to_kafka
            copied = copy(spark, chosen, checkpoint, follow=follow, on_progress=_showing(*shown))
    names = (chosen.kafka_topic, topic) if from_kafka else (topic, chosen.kafka_topic)
    print_rows([{"from": names[0], "to": names[1], "messages": copied}], as_json, "")


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ParameterInvalid("--kafka-option", text, "must be written NAME=VALUE")
    return name, value


def _showing(bars: "Progress", task: "TaskID") -> "OnProgress":
    def show(done: int, total: int, note: str) -> None:
        bars.update(task, completed=done, total=total, note=note)

    return show
