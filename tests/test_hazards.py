"""Every hazard in docs/explanation/safety.md has a test that names it, or says why there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HAZARDS = [f"H{number:02}" for number in range(1, 46)]
ROW = re.compile(r"^\| (H\d\d) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
NO_TEST = ("not detected", "not offered")


@pytest.fixture(scope="module")
def rows() -> dict[str, str]:
    """The table: what is said of each hazard."""
    found = ROW.findall((ROOT / "docs" / "explanation" / "safety.md").read_text())
    assert len(found) == len(dict(found)), "a hazard has two rows"
    return dict(found)


@pytest.fixture(scope="module")
def tested() -> set[str]:
    """The hazards in the names of tests."""
    files = (ROOT / "tests").rglob("test_*.py")
    names = [name for file in files for name in TEST.findall(file.read_text())]
    return {number.upper() for name in names for number in re.findall(r"_(h\d\d)(?=_)", name)}


def test_each_hazard_has_a_row(rows: dict[str, str]) -> None:
    assert HAZARDS == list(rows)


@pytest.mark.parametrize("hazard", HAZARDS)
def test_each_hazard_has_a_test_or_a_reason(
    rows: dict[str, str], tested: set[str], hazard: str
) -> None:
    row = rows[hazard]
    assert hazard in tested or any(words in row for words in NO_TEST)
    assert all(cell.strip() for cell in row.split(" | "))


def test_no_test_names_a_hazard_that_is_none(tested: set[str]) -> None:
    assert tested <= set(HAZARDS)
