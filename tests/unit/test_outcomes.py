"""The facts that leases, reports and errors carry, and the line made of them."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from aioredlock2.outcomes import NodeOutcome, NodeRelease, Removal, Vote, describe


def outcomes(*votes: Vote | tuple[Vote, str]) -> list[NodeOutcome]:
    return [
        NodeOutcome(f"n{number}", *(vote if isinstance(vote, tuple) else (vote,)))
        for number, vote in enumerate(votes, 1)
    ]


G, D, F, M, P = Vote.GRANTED, Vote.DENIED, Vote.FAULTED, Vote.MISSING, Vote.PENDING


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ([], "0 of 0 granted"),
        ([G, G, G], "3 of 3 granted"),
        ([G, D, D], "1 of 3 granted, 2 denied"),
        ([(F, "refused")], "0 of 1 granted, 1 unreachable (n1: refused)"),
        ([G, M, F], "1 of 3 granted, 2 unreachable"),
        ([G, P, P], "1 of 3 granted, 2 not asked or not heard yet"),
        (
            [G, G, D, (F, "connection refused"), (M, "no answer in time")],
            (
                "2 of 5 granted, 1 denied, 2 unreachable "
                "(n4: connection refused; n5: no answer in time)"
            ),
        ),
        (
            [(D, "not a lock"), P],
            "0 of 2 granted, 1 denied, 1 not asked or not heard yet (n1: not a lock)",
        ),
    ],
)
def test_f117_one_line_tells_counts_and_causes(
    given: list[Vote | tuple[Vote, str]], line: str
) -> None:
    assert describe(outcomes(*given)) == line


@pytest.mark.parametrize("fact", [NodeOutcome("n1", D, "x"), NodeRelease("n1", Removal.ABSENT)])
def test_facts_can_be_compared_kept_and_sent(fact: NodeOutcome | NodeRelease) -> None:
    assert pickle.loads(pickle.dumps(fact)) == fact  # noqa: S301 - our own
    assert hash(fact) == hash(dataclasses.replace(fact))
    with pytest.raises(dataclasses.FrozenInstanceError):
        fact.node = "other"  # type: ignore[misc]


def test_each_kind_reads_as_words() -> None:
    """The values appear in reports and in JSON: part of the public API."""
    assert [vote.value for vote in Vote] == ["pending", "granted", "denied", "faulted", "missing"]
    assert [removal.value for removal in Removal] == [
        "deleted",
        "absent",
        "other owner",
        "unreachable",
        "pending",
        "never sent",
    ]
