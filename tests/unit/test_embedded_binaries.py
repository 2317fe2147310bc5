"""The search for PostgreSQL programs."""

from pathlib import Path

import pytest

from mqdb.embedded.account import Account
from mqdb.embedded.binaries import (
    PostgresBinaries,
    binaries_for,
    find_postgres,
    inspect_folder,
    parse_version,
)
from mqdb.errors import PostgresNotFound, PostgresVersionMismatch


def programs(folder: Path, version: str) -> Path:
    """A folder that looks like a PostgreSQL installation of this version."""
    folder.mkdir(parents=True)
    for name in ("postgres", "initdb", "pg_ctl"):
        program = folder / name
        program.write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
        program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("postgres (PostgreSQL) 18.4\n", (18, 4)),
        ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n", (15, 18)),
        ("postgres (PostgreSQL) 19beta1\n", (19, 0)),
        ("postgres (PostgreSQL) 9.6.24\n", (9, 6)),
        ("sh: postgres: not found", None),
        ("", None),
    ],
)
def test_version_is_read_from_what_postgres_prints(text: str, version: tuple[int, int] | None) -> None:
    assert parse_version(text) == version


def test_mqdb_pg_bin_comes_first(tmp_path: Path) -> None:
    wished = programs(tmp_path / "wished", "16.3")

    found = find_postgres(environ={"MQDB_PG_BIN": str(wished), "PATH": ""})

    assert found == PostgresBinaries(wished, (16, 3))


def test_a_folder_without_programs_in_mqdb_pg_bin_is_an_error_and_not_skipped(tmp_path: Path) -> None:
    with pytest.raises(PostgresNotFound) as caught:
        find_postgres(environ={"MQDB_PG_BIN": str(tmp_path)})

    assert f"MQDB_PG_BIN={tmp_path}" in str(caught.value)


def test_a_version_before_15_in_mqdb_pg_bin_is_an_error(tmp_path: Path) -> None:
    old = programs(tmp_path / "old", "14.12")

    with pytest.raises(PostgresNotFound) as caught:
        find_postgres(environ={"MQDB_PG_BIN": str(old)})

    assert "is version 14" in str(caught.value)


def test_the_search_goes_on_when_the_data_directory_is_of_another_version(tmp_path: Path) -> None:
    wished = programs(tmp_path / "wished", "16.3")
    on_path = programs(tmp_path / "on_path", "97.1")

    found = find_postgres(97, environ={"MQDB_PG_BIN": str(wished), "PATH": str(on_path)})

    assert found == PostgresBinaries(on_path, (97, 1))


def test_the_error_names_the_version_needed_and_the_versions_found(tmp_path: Path) -> None:
    wished = programs(tmp_path / "wished", "16.3")

    with pytest.raises(PostgresVersionMismatch) as caught:
        find_postgres(98, environ={"MQDB_PG_BIN": str(wished), "PATH": ""})

    assert "written by PostgreSQL 98" in str(caught.value)
    assert f"16.3 ({wished})" in str(caught.value)


def test_the_wheel_is_found_without_any_setting() -> None:
    found = find_postgres(environ={"PATH": ""})

    assert found.major >= 18
    assert "site-packages" in str(found.bin_dir)


def test_a_symbolic_link_on_path_is_followed(tmp_path: Path) -> None:
    real = programs(tmp_path / "real", "97.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "pg_ctl").symlink_to(real / "pg_ctl")

    assert find_postgres(97, environ={"PATH": str(links)}).bin_dir == real


def test_a_folder_whose_postgres_does_not_run_is_no_candidate(tmp_path: Path) -> None:
    folder = programs(tmp_path / "broken", "18.1")
    (folder / "postgres").write_text("not a program")

    assert inspect_folder(folder) is None


def test_without_an_account_the_programs_stay_where_they_are(tmp_path: Path) -> None:
    binaries = PostgresBinaries(tmp_path, (18, 4))

    assert binaries_for(None, binaries, tmp_path / "runtime") is binaries


def test_programs_out_of_reach_are_copied_only_out_of_a_wheel(tmp_path: Path) -> None:
    nobody = Account("nobody", 65_534, 65_534)
    folder = tmp_path / "private" / "bin"
    binaries = PostgresBinaries(folder, (18, 4))

    with pytest.raises(PostgresNotFound) as caught:
        binaries_for(nobody, binaries, tmp_path / "runtime")

    assert "user 'nobody', under which root runs PostgreSQL, cannot execute 18.4" in str(caught.value)
    assert not (tmp_path / "runtime").exists()
