"""The JDBC driver's jar is the requested one, else the environment's, else the system's.

A request is never overridden.
"""

from pathlib import Path

import pytest

from mqdb.pipeline.errors import JarMismatch, JarNotFound
from mqdb.pipeline.read.jdbc_driver import MAVEN_CHECKSUM, check_fetched, find_jar


@pytest.fixture
def jars(tmp_path: Path) -> list[Path]:
    """Three jars that exist."""
    found = [tmp_path / name for name in ("argument.jar", "environment.jar", "system.jar")]
    for jar in found:
        jar.touch()
    return found


def test_the_argument_comes_before_the_environment_and_that_before_the_system(jars: list[Path]) -> None:
    argument, environment, system = jars

    assert find_jar(argument, {"MQDB_PG_JAR": str(environment)}, system) == argument
    assert find_jar(None, {"MQDB_PG_JAR": str(environment)}, system) == environment
    assert find_jar(None, {}, system) == system


def test_where_the_machine_has_none_there_is_none(tmp_path: Path) -> None:
    assert find_jar(None, {}, tmp_path / "missing.jar") is None


def test_a_jar_that_is_named_and_not_there_is_an_error_that_names_it(jars: list[Path], tmp_path: Path) -> None:
    missing = tmp_path / "missing.jar"

    with pytest.raises(JarNotFound, match=r"jar=.*missing\.jar"):
        find_jar(missing, {"MQDB_PG_JAR": str(jars[1])}, jars[2])
    with pytest.raises(JarNotFound, match=r"MQDB_PG_JAR=.*missing\.jar"):
        find_jar(None, {"MQDB_PG_JAR": str(missing)}, jars[2])


def test_a_fetched_jar_that_is_another_one_is_refused(tmp_path: Path) -> None:
    jar = tmp_path / "postgresql.jar"
    jar.write_bytes(b"something else")

    with pytest.raises(JarMismatch) as refused:
        check_fetched(jar)

    assert refused.value.expected == MAVEN_CHECKSUM
    assert str(jar) in str(refused.value)
