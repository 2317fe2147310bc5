"""The files of the home directory, and the errors when they cannot be used."""

import os
from pathlib import Path

import pytest

from mqdb.embedded import home as homes
from mqdb.embedded.account import service_account
from mqdb.embedded.home import Home, RunningPostgres
from mqdb.embedded.sharing import attach
from mqdb.errors import DataDirectoryBusy, DataDirectoryUnusable

RUNNING = RunningPostgres("postgresql://mqdb:secret@127.0.0.1:1/mqdb?sslmode=disable", 1, 4711, 4712)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_run_file_is_private_and_reads_back(tmp_path: Path) -> None:
    home = Home(tmp_path)

    homes.write_run_file(home, RUNNING)

    assert homes.read_run_file(home) == RUNNING
    assert mode(home.run_file) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"dsn": "x"}', '{"unknown": 1}'])
def test_a_run_file_that_nobody_understands_counts_as_none(tmp_path: Path, text: str) -> None:
    Home(tmp_path).run_file.write_text(text)

    assert homes.read_run_file(Home(tmp_path)) is None


def test_there_is_nothing_to_attach_to_where_nothing_was_started(tmp_path: Path) -> None:
    assert attach(tmp_path / "nowhere") is None


def test_a_run_file_whose_server_does_not_answer_is_not_attached_to(tmp_path: Path) -> None:
    homes.write_run_file(Home(tmp_path), RUNNING)

    assert attach(tmp_path) is None


def test_password_is_written_once_and_private(tmp_path: Path) -> None:
    home = Home(tmp_path)

    first = homes.password(home, is_new=True)

    assert homes.password(home, is_new=False) == first
    assert len(first) >= 32
    assert mode(home.password_file) == 0o600


def test_a_lost_password_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryUnusable) as caught:
        homes.password(Home(tmp_path), is_new=False)

    assert str(tmp_path / "password") in str(caught.value)


def test_the_superuser_has_a_password_of_its_own(tmp_path: Path) -> None:
    home = Home(tmp_path)

    assert homes.superuser_password(home, is_new=True) != homes.password(home, is_new=True)
    assert mode(home.superuser_password_file) == 0o600


def test_nobody_else_can_open_the_lock_and_so_hold_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    previous = os.umask(0)
    try:
        homes.lock(home).release()
    finally:
        os.umask(previous)

    assert mode(home.lock_file) == 0o600


def test_a_home_in_which_everybody_may_write_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)

    with pytest.raises(DataDirectoryUnusable, match=r"every user of this machine may write to it \(mode 1777\)"):
        homes.create(Home(shared), None)


def test_the_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    home = Home(tmp_path)
    lock = homes.lock(home)

    with pytest.raises(DataDirectoryBusy) as caught:
        homes.lock(home)
    lock.release()

    assert str(tmp_path) in str(caught.value)
    homes.lock(home).release()


def test_directories_that_exist_keep_their_mode_and_new_ones_let_the_account_through(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    previous = os.umask(0o077)
    try:
        homes.create(Home(private / "a" / "b"), service_account())
    finally:
        os.umask(previous)

    made = 0o711 if os.geteuid() == 0 else 0o700
    assert mode(private) == 0o700
    assert mode(private / "a") == mode(private / "a" / "b") == made


def test_a_file_in_the_place_of_the_home_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")

    with pytest.raises(DataDirectoryUnusable) as caught:
        homes.create(Home(tmp_path / "home"), None)

    assert "not a directory" in str(caught.value)


def test_a_new_home_has_no_version(tmp_path: Path) -> None:
    assert homes.data_version(Home(tmp_path)) is None


def test_version_of_a_cluster_is_read(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.data.mkdir()
    (home.data / "PG_VERSION").write_text("15\n")

    assert homes.data_version(home) == 15


@pytest.mark.parametrize(("name", "text"), [("notes.txt", "mine"), ("PG_VERSION", "eighteen")])
def test_a_data_directory_with_something_else_in_it_is_refused(tmp_path: Path, name: str, text: str) -> None:
    home = Home(tmp_path)
    home.data.mkdir()
    (home.data / name).write_text(text)

    with pytest.raises(DataDirectoryUnusable) as caught:
        homes.data_version(home)

    assert "PG_VERSION" in str(caught.value)
    assert "set MQDB_HOME" in str(caught.value)


def test_a_long_log_is_put_aside_at_the_next_start(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.log_file.open("wb") as log:
        log.truncate(10_000_001)

    os.close(homes.open_log(home))

    assert home.log_file.stat().st_size == 0
    assert mode(home.log_file) == 0o600
    assert (tmp_path / "postgres.log.1").exists()
