"""A seed's history as text: what it was like, what happened, what was wrong."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.history import Tenure
from tests.simulation.simulation import Result

__all__ = ["story"]


def story(result: Result) -> Iterator[str]:
    """Lines for people, in the order of true time."""
    history = result.history
    yield f"seed {result.options.seed}"
    yield from result.options.lines()
    lines = [(at, f"FAULT {what}") for at, what in history.faults]
    for tenure in history.tenures:
        lines.append((tenure.granted_at, f"      {_lease(tenure)}"))
        if tenure.voted_out_at < tenure.released_at:
            lines.append((tenure.voted_out_at, f"      {tenure.process} loses {tenure.name}"))
    lines.append((history.healed_at, "all is healed"))
    for at, text in sorted(lines):
        yield f"{at:10.6f} {text}"
    for line in result.verdict.explained:
        yield f"explained: {line}"
    for line in result.verdict.violations:
        yield f"VIOLATION: {line}"


def _lease(tenure: Tenure) -> str:
    fence = "" if tenure.fence is None else f", fence {tenure.fence}"
    extended = f", extended {len(tenure.deadlines) - 1} times" if len(tenure.deadlines) > 1 else ""
    return (
        f"{tenure.process} has {tenure.name} until {min(tenure.until, tenure.released_at):.6f}"
        f"{fence}{extended} ({tenure.token[:8].decode()})"
    )
