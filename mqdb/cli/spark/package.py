"""`mqdb spark package`: mqdb as a zip for spark-submit."""

from pathlib import Path
from typing import Annotated

import typer


def package(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The zip file to write.", dir_okay=False)] = Path(
        "mqdb.zip"
    ),
) -> None:
    """Write mqdb to a zip file that spark-submit sends to all nodes, because spark-submit does not accept wheels.

    The nodes need the libraries of mqdb\\[spark], but not mqdb itself. Call [bold]mqdb.pipeline.register(spark)[/bold]
    in the job, because Spark does not find data sources in such a file by itself.

    \b
    [bold]Examples[/bold]
      mqdb spark package mqdb.zip
      spark-submit --py-files mqdb.zip job.py
    """
    from mqdb.pipeline.packing import pack

    print(f"{pack(file):,} files are in {file}")
