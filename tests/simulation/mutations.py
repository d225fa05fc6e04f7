"""Planted bugs: each breaks the real library in one place while it is on, and has to be found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aioredlock2._core.ballot import Ballot

__all__ = ["MUTATIONS", "Mutation"]

Plant = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One planted bug."""

    name: str
    planted: Plant


MUTATIONS: dict[str, Mutation] = {}


def mutation(plant: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    """Register a planted bug under its function's name."""
    name = plant.__name__.strip("_").replace("_", " ")
    MUTATIONS[name] = Mutation(name, contextlib.contextmanager(plant))
    return plant


@contextlib.contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another attribute for a while."""
    was = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, was)


@mutation
def _quorum_one_too_small() -> Iterator[None]:
    made = Ballot.__init__

    def init(self: Ballot, nodes: int, rule: Any) -> None:
        made(self, nodes, rule)
        self.quorum = max(1, nodes // 2)

    with swapped(Ballot, "__init__", init):
        yield
