"""The account under which root runs PostgreSQL."""

import os
from pathlib import Path

import pytest

from mqdb.embedded.account import (
    Account,
    can_enter,
    closed_directory,
    owner_of,
    postgres_environment,
    service_account,
)
from mqdb.embedded.home import temporary_home
from mqdb.errors import DataDirectoryUnusable, SettingInvalid

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root hands PostgreSQL to another account")
STRANGER = Account("stranger", 54_321, 54_321)


@pytest.mark.skipif(os.geteuid() == 0, reason="root hands PostgreSQL to another account")
def test_a_plain_user_runs_postgres_itself() -> None:
    assert service_account({"MQDB_PG_USER": "nobody"}) is None


@as_root
def test_root_has_an_account_for_it_and_takes_the_wished_one() -> None:
    chosen = service_account({})
    wished = service_account({"MQDB_PG_USER": "nobody"})

    assert chosen is not None
    assert chosen.uid != 0
    assert wished is not None
    assert wished.name == "nobody"


@as_root
@pytest.mark.parametrize("name", ["root", "no-such-user"])
def test_a_wished_user_that_cannot_run_it_is_refused(name: str) -> None:
    with pytest.raises(SettingInvalid) as caught:
        service_account({"MQDB_PG_USER": name})

    assert repr(name) in str(caught.value)
    assert "MQDB_PG_USER" in str(caught.value)


@as_root
def test_an_existing_data_directory_is_served_by_its_owner(tmp_path: Path) -> None:
    nobody = service_account({"MQDB_PG_USER": "nobody"})
    assert nobody is not None
    os.chown(tmp_path, nobody.uid, nobody.gid)

    assert owner_of(tmp_path, STRANGER) == nobody


@as_root
@pytest.mark.parametrize(("uid", "reason"), [(0, "belongs to root"), (54_322, "user number 54322")])
def test_a_data_directory_of_somebody_who_cannot_run_it_is_refused(tmp_path: Path, uid: int, reason: str) -> None:
    os.chown(tmp_path, uid, -1)

    with pytest.raises(DataDirectoryUnusable) as caught:
        owner_of(tmp_path, STRANGER)

    assert reason in str(caught.value)


@as_root
def test_the_closed_directory_on_the_way_is_named() -> None:
    with temporary_home() as place:
        closed = place / "closed"
        home = closed / "open"
        home.mkdir(parents=True)
        closed.chmod(0o700)

        assert can_enter(place, STRANGER)
        assert not can_enter(home, STRANGER)
        assert closed_directory(home, STRANGER) == closed


def test_settings_for_other_servers_do_not_reach_ours() -> None:
    environ = {"PGDATA": "/x", "PGPORT": "1", "LANG": "de_DE", "LC_MESSAGES": "de_DE", "PATH": "/bin"}

    assert postgres_environment(environ) == {"PATH": "/bin", "LC_ALL": "C"}
