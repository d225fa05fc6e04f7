"""What came out of a run, chapter by chapter and in all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.check import Verdict, Violation
from tests.faults.history import Rested

__all__ = ["Report"]

TOLD_MAX = 20
"""Violations shown of a chapter; all are in its history."""


@dataclass(slots=True)
class Report:
    """Sums over chapters, in bounded memory."""

    facts: dict[str, Any]
    """What was run: server, seed, version, ..."""
    chapters: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    longest_gap: float = 0.0
    longest_late: float = 0.0
    fences: dict[str, int] = field(default_factory=dict)
    first_rest: dict[int, Rested] = field(default_factory=dict)
    last_rest: dict[int, Rested] = field(default_factory=dict)
    """Of each process, by its id."""

    def add(self, verdict: Verdict) -> None:
        """Take one chapter in."""
        self.chapters += 1
        self.counts += verdict.counts
        self.faults += verdict.faults
        self.violations += Counter(violation.kind for violation in verdict.violations)
        self.longest_gap = max(self.longest_gap, verdict.longest_gap)
        self.longest_late = max(self.longest_late, verdict.longest_late)
        for lease in verdict.leases:
            highest = self.fences.get(lease.resource, 0)
            self.fences[lease.resource] = max(highest, lease.fence or 0)
        alive = {rested.pid for rested in verdict.resting}
        self.first_rest = {pid: each for pid, each in self.first_rest.items() if pid in alive}
        for rested in verdict.resting:
            self.first_rest.setdefault(rested.pid, rested)
        self.last_rest = {rested.pid: rested for rested in verdict.resting}

    def tell(self, chapter: int, violations: list[Violation], replay: str) -> list[str]:
        """The lines for a chapter's violations, kept for the end."""
        lines = [f"chapter {chapter}: {violation}" for violation in violations[:TOLD_MAX]]
        if len(violations) > TOLD_MAX:
            lines.append(f"chapter {chapter}: ... and {len(violations) - TOLD_MAX} more")
        lines.append(f"chapter {chapter}: played again by: {replay}")
        self.told += lines
        return lines

    def save(self, path: Path) -> None:
        """All of it as JSON."""
        fields = {
            **self.facts,
            "chapters": self.chapters,
            "violations": dict(self.violations),
            "counts": dict(sorted(self.counts.items())),
            "faults": dict(sorted(self.faults.items())),
            "longest_gap_s": round(self.longest_gap, 3),
            "longest_late_s": round(self.longest_late, 3),
            "told": self.told,
        }
        path.write_text(json.dumps(fields, indent=2) + "\n")

    def lines(self) -> list[str]:
        """For people."""
        growth = [
            f"{last.kilobytes - self.first_rest[pid].kilobytes:+d} KB, {last.tasks} tasks, "
            f"{last.files} files"
            for pid, last in self.last_rest.items()
        ]
        return [
            *(f"{name}: {value}" for name, value in self.facts.items()),
            f"chapters: {self.chapters}",
            f"leases: {_listed(self.counts)}",
            f"faults: {_listed(self.faults)}",
            f"longest gap {self.longest_gap:.2f} s, latest news of a loss {self.longest_late:.3f} s",
            *(f"worker at rest, since its first rest: {each}" for each in growth),
            *(
                f"{name}: {self.counts[name]}"
                for name in ("overlaps", "fence inversions", "orphans")
            ),
            f"violations: {_listed(self.violations) or 'none'}",
        ]


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
