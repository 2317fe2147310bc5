"""Spark finds format("mqdb") by an import, in a separate process that does nothing else."""

import subprocess
import sys

PROGRAM = """
import sys
import pyspark.sql.datasource, pyspark.sql.streaming.datasource
before = set(sys.modules)
import pyspark_mqdb
print(pyspark_mqdb.DefaultSource.name(), *sorted(set(sys.modules) - before))
"""


def test_the_look_up_imports_no_more_than_it_needs() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    name, *imported = done.stdout.split()
    ours = {module for module in imported if module.startswith("mqdb")}
    assert name == "mqdb"
    assert ours == {
        "mqdb",
        "mqdb.errors",
        "mqdb.pipeline",
        "mqdb.pipeline.errors",
        "mqdb.pipeline.read",
        "mqdb.pipeline.read.schema",
        "mqdb.pipeline.source",
    }
    assert not {module.partition(".")[0] for module in imported} & {"numpy", "psycopg", "pyarrow", "sqlalchemy"}
