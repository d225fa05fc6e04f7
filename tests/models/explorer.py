"""Breadth first through every state of a model: is there a way to one that must not be?

A model says where it starts, which steps lead on from a state, and what is wrong with one. States are
tuples, compared exactly. States that differ only by the numbers of the nodes are one state: `canonical`
picks it. The way to a violation is the shortest one, told with nodes that keep their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

__all__ = ["Findings", "Label", "Model", "TooManyStates", "explore", "replaced"]

S = TypeVar("S")
Label = tuple[Any, ...]
"""A text with places for the rest: put together only for a way that is told."""


class Model(Protocol[S]):
    """What is explored."""

    def starts(self) -> Iterable[S]:
        """Where it can begin."""

    def steps(self, state: S) -> Iterator[tuple[Label, S]]:
        """What can happen next, and where that leads."""

    def canonical(self, state: S) -> S:
        """The same for all states that differ by the numbers of the nodes only."""

    def wrong(self, state: S) -> str:
        """What must not be, or nothing."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What a search came to."""

    states: int
    wrong: str = ""
    way: tuple[str, ...] = ()
    """The shortest way to it."""

    def __str__(self) -> str:
        if not self.wrong:
            return f"holds in all {self.states:,} states"
        return "\n    ".join((f"after {self.states:,} states: {self.wrong}", *self.way))


class TooManyStates(Exception):
    """The model is larger than whoever asked believed: nothing is known."""


def explore(model: Model[S], states_max: int = 10_000_000) -> Findings:
    """Search `model` to exhaustion, or to the first violation."""
    before: dict[S, S | None] = {model.canonical(state): None for state in model.starts()}
    frontier = list(before)
    while frontier:
        following: list[S] = []
        for state in frontier:
            for _, after in model.steps(state):
                known, count = model.canonical(after), len(before)
                before.setdefault(known, state)
                if len(before) == count:
                    continue
                if wrong := model.wrong(known):
                    return Findings(len(before), wrong, tuple(_told(model, before, known)))
                following.append(known)
        if len(before) > states_max:
            raise TooManyStates(f"more than {states_max:,}")
        frontier = following
    return Findings(len(before))


def replaced(of: tuple[Any, ...], index: int, item: Any) -> Any:
    """`of` with another item at `index`."""
    return (*of[:index], item, *of[index + 1 :])


def _told(model: Model[S], before: dict[S, S | None], end: S) -> Iterator[str]:
    """The way to `end`, walked again from its start without renumbering the nodes."""
    stations = [end]
    while (station := before[stations[-1]]) is not None:
        stations.append(station)
    state = stations.pop()
    while stations:
        goal = stations.pop()
        label, state = next(step for step in model.steps(state) if model.canonical(step[1]) == goal)
        yield label[0].format(*label[1:])
