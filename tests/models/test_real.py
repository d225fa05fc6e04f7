"""The real client against model nodes: every state that one client can come to."""

from __future__ import annotations

from tests.models.explorer import explore
from tests.models.real import Real


def test_h22_h23_whatever_comes_between_a_call_that_is_cancelled_leaves_no_key() -> None:
    """Cancelled at every moment, released at every moment, its requests as late as they may be."""
    found = explore(Real((frozenset({"acquire", "cancel", "release"}), frozenset())))
    print(found)
    assert not found.wrong
    assert found.states > 1000
