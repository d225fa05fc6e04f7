"""Every state of small models: what must hold holds, and what must be found is found.

The rest of the cases takes minutes: `nox -s models`.
"""

from __future__ import annotations

import pytest

from tests.models.cases import CASES, Case
from tests.models.explorer import Findings, TooManyStates, explore
from tests.models.mutex import Mutex

QUICK = [case for case in CASES if case.quick]


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_it_comes_out_as_it_must(case: Case) -> None:
    found = explore(case.model)
    print(found)
    assert case.agrees(found)


def test_a_way_is_told_from_the_start_to_the_violation() -> None:
    found = explore(Mutex(ttl=1, crashes=1))
    assert found.way[0] == "client 0 asks"
    assert any("restarts empty" in step for step in found.way)
    assert "client 1 HOLDS" in found.way[-1]


def test_a_search_that_is_broken_off_proves_nothing() -> None:
    with pytest.raises(TooManyStates):
        explore(Mutex(ttl=1), states_max=100)


@pytest.mark.parametrize("other", ["", "something else"])
def test_only_the_violation_that_was_meant_agrees(other: str) -> None:
    case = Case("a case", Mutex(), "two valid leases")
    assert case.agrees(Findings(1, "two valid leases at once"))
    assert not case.agrees(Findings(1, other))
    assert not Case("another", Mutex()).agrees(Findings(1, "two valid leases at once"))
