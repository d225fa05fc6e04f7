"""The demo's faults: a quorum of the nodes is whole at every moment of every plan."""

from __future__ import annotations

import random

import pytest

from aioredlock2._demo.plan import Action, Step, cycle, guard_seconds, spare

NODES = range(1, 10)
SEEDS = range(50)


def actions(steps: list[Step]) -> list[Action]:
    return [step.action for step in steps]


def test_spare_nodes_leave_a_quorum() -> None:
    assert [0, 0, 1, 1, 2, 2, 3] == [spare(nodes) for nodes in range(1, 8)]


@pytest.mark.parametrize("nodes", NODES)
def test_never_more_nodes_are_broken_than_can_be_spared(nodes: int) -> None:
    """A restarted node counts as broken until the settling at the end, which outlasts its guard."""
    for seed in SEEDS:
        dead: set[int] = set()
        frozen: set[int] = set()
        guarded: set[int] = set()
        for step in cycle(nodes, 1.0, random.Random(seed)):
            if step.action is Action.KILL_NODE:
                assert step.node is not None
                dead.add(step.node)
            elif step.action is Action.FREEZE_NODE:
                assert step.node is not None
                frozen.add(step.node)
            elif step.action is Action.RESTART_NODE:
                assert step.node in dead
                dead.remove(step.node)
                guarded.add(step.node)
            elif step.action is Action.THAW_NODE:
                assert step.node in frozen
                frozen.remove(step.node)
            elif step.action is Action.SETTLE:
                guarded.clear()
            assert len(dead | frozen | guarded) <= spare(nodes)
        assert not dead | frozen | guarded


@pytest.mark.parametrize("nodes", NODES)
def test_every_cycle_kills_a_holder_and_ends_settled(nodes: int) -> None:
    steps = cycle(nodes, 1.0, random.Random(1))
    assert Action.KILL_HOLDER in actions(steps)
    assert actions(steps)[-1] is Action.SETTLE


def test_five_nodes_lose_one_to_a_kill_and_one_to_a_freeze_at_the_same_time() -> None:
    done = actions(cycle(5, 1.0, random.Random(1)))
    assert done[:3] == [Action.KILL_NODE, Action.FREEZE_NODE, Action.KILL_HOLDER]


def test_three_nodes_lose_one_at_a_time() -> None:
    done = actions(cycle(3, 1.0, random.Random(1)))
    assert done.index(Action.RESTART_NODE) < done.index(Action.FREEZE_NODE)


def test_of_one_or_two_nodes_none_is_hurt() -> None:
    for nodes in (1, 2):
        assert {Action.KILL_HOLDER, Action.SETTLE} == set(
            actions(cycle(nodes, 1.0, random.Random(1)))
        )


def test_each_node_has_its_turn() -> None:
    rng = random.Random(1)
    hit = {step.node for _ in SEEDS for step in cycle(5, 1.0, rng)} - {None}
    assert hit == set(range(5))


@pytest.mark.parametrize("ttl", [0.5, 1.0, 2.0])
def test_after_a_holder_is_killed_the_next_section_has_time_to_be_seen(ttl: float) -> None:
    """Nothing is mended before the killed holder's lock has run out, so its cost shows in full."""
    for nodes in NODES:
        steps = cycle(nodes, ttl, random.Random(1))
        first = actions(steps).index(Action.KILL_HOLDER)
        assert steps[first + 1].pause > ttl


def test_the_guard_covers_the_ttl_a_second_and_the_rounding() -> None:
    assert guard_seconds(1.0) > 3.0
