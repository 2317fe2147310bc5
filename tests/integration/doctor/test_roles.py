"""The doctor's findings for a role that does not own the broker; each check is tested and documented."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqdb.broker.doctor.examine import ALL_CHECKS
from mqdb.broker.doctor.finding import DEFAULT_THRESHOLDS, DoctorCheck, FindingStatus
from mqdb_client import Admin, Doctor, Message
from tests.fixtures.principals import Principal

ROOT = Path(__file__).parents[3]


@pytest.fixture
def shop(owner: Admin, principal: Principal) -> Iterator[Admin]:
    """A role with a few rights, and data that it may not see."""
    owner.crons.add("tick", "@hourly", Message("secret", "x"))
    owner.crons.pause("tick")
    with Admin(principal("shop", send=["orders"], read=["orders"], group=["billing"])) as admin:
        yield admin


def test_a_role_is_told_what_it_does_not_see(shop: Admin) -> None:
    found = {each.check: each for each in shop.doctor.examine()}

    assert [each for each in found.values() if each.error is not None] == []
    unseen = {check.name for check in ALL_CHECKS if check.needs_owner}
    assert {name for name, each in found.items() if each.status is FindingStatus.UNKNOWN} >= unseen
    assert all("owner" in found[name].seen for name in unseen)
    assert found["leader"].status is FindingStatus.FAIL
    assert (found["paused-crons"].status, found["lag"].status) == (FindingStatus.OK, FindingStatus.OK)
    assert found["paused-crons"].seen.endswith("counts only what the role may see")


def test_what_a_role_cannot_see_is_no_warning(shop: Admin) -> None:
    seen = shop.doctor.examine(only=["retention", "half-messages"])

    assert shop.doctor.exit_code(seen) == 0


@pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.name)
def test_each_check_is_brought_about_by_a_test(check: DoctorCheck) -> None:
    tests = set(Path(__file__).parent.glob("test_*.py")) - {Path(__file__)}

    assert any(f'"{check.name}"' in path.read_text(encoding="utf-8") for path in tests)


def test_the_page_describes_all_checks_as_they_are() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    described = [line for line in page.splitlines() if line.startswith("| `")]

    assert described == [
        f"| `{each.name}` | {each.looks_at} | {each.problem_at(DEFAULT_THRESHOLDS)} | {each.remedy} |"
        for each in Doctor.checks()
    ]
