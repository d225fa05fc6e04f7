"""The schedule never breaks more nodes than the claim allows, and is the same for the same seed."""

from __future__ import annotations

import random

import pytest

from aioredlock2._demo.plan import spare
from tests.faults.node_faults import MAKERS
from tests.faults.plan import (
    ALL_SIDES,
    IN_TURN,
    NODE_FAULTS,
    SETTLE_S,
    TTL_S,
    WORKER_FAULTS,
    Fault,
    draw,
)

SECONDS = 300.0
ROUNDING_S = 1e-6
SEEDS = range(20)


def drawn(seed: int, nodes: int = 5, *, beyond: bool = False) -> list[Fault]:
    return draw(random.Random(seed), SECONDS, nodes=nodes, workers=4, beyond=beyond)


def span(fault: Fault) -> tuple[float, float]:
    """From its beginning to when its target is whole again."""
    return fault.at, fault.at + fault.seconds + fault.kind.after


def of_nodes(faults: list[Fault]) -> list[Fault]:
    return [fault for fault in faults if fault.node is not None]


@pytest.mark.parametrize("nodes", [3, 5, 7])
def test_a_quorum_is_always_whole_for_everybody(nodes: int) -> None:
    for seed in SEEDS:
        faults = [fault for fault in of_nodes(drawn(seed, nodes)) if fault.what != IN_TURN]
        for fault in faults:
            for side in ALL_SIDES:
                broken = {
                    other.node
                    for other in faults
                    if side in other.sides and span(other)[0] <= fault.at < span(other)[1]
                }
                assert len(broken) <= spare(nodes), (seed, fault)


def test_all_are_restarted_in_turn() -> None:
    faults = [fault for seed in SEEDS for fault in drawn(seed) if fault.what == IN_TURN]
    assert set(range(5)) == {fault.node for fault in faults}
    assert all(fault.kind.after > TTL_S for fault in faults)


def test_the_sides_see_different_nodes() -> None:
    sides = {fault.sides for seed in range(5) for fault in of_nodes(drawn(seed))}
    assert {(0,), (1,), (0, 1)} == sides


def test_a_node_that_forgets_is_the_only_one() -> None:
    for seed in SEEDS:
        faults = of_nodes(drawn(seed))
        for fault in faults:
            if not fault.kind.forgets:
                continue
            begins, ends = span(fault)
            near = [
                other
                for other in faults
                if other is not fault
                and span(other)[1] > begins - SETTLE_S + ROUNDING_S
                and span(other)[0] < ends + SETTLE_S - ROUNDING_S
            ]
            assert [] == near, (seed, fault)


def test_one_target_has_one_fault_at_a_time() -> None:
    for seed in SEEDS:
        whole_at: dict[tuple[str, int], float] = {}
        for fault in drawn(seed):
            begins, ends = span(fault)
            for side in fault.sides:
                assert whole_at.get((fault.target, side), 0.0) <= begins, (seed, fault)
                whole_at[fault.target, side] = ends


def test_every_kind_comes_up() -> None:
    faults = [fault for seed in SEEDS for fault in drawn(seed)]
    assert set(NODE_FAULTS) == {fault.what for fault in of_nodes(faults)}
    assert set(WORKER_FAULTS) == {fault.what for fault in faults if fault.node is None}
    assert set(NODE_FAULTS) == set(MAKERS)


def test_beyond_the_assumptions_majorities_forget() -> None:
    faults = of_nodes(drawn(1, beyond=True))
    at_once = [len({f.node for f in faults if f.at == fault.at}) for fault in faults]
    assert max(at_once) >= 3


def test_the_seed_decides_all() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_what_is_not_possible_here_does_not_come() -> None:
    faults = draw(random.Random(1), SECONDS, nodes=5, workers=4, without=["clock ahead"])
    assert "clock ahead" not in {fault.what for fault in faults}
