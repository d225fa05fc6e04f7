"""A picture of one chapter: each worker's leases as bars, the faults of workers and nodes with them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.faults.check import Verdict
from tests.faults.history import Faulted
from tests.faults.plan import SIDES

__all__ = ["paint"]

ROW = 1.0
BAND = 0.62
"""The share of a worker's row for its leases, one lane per name; the rest is for its faults."""
BAR_S_MIN = 0.05
"""Shorter faults are drawn as long as that."""


def paint(verdict: Verdict, path: Path, title: str) -> bool:
    """Write the picture as SVG; False where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    if not verdict.leases:
        return False
    began_at = min([lease.start for lease in verdict.leases] + [m.at for m in verdict.marks])
    names = sorted({lease.resource for lease in verdict.leases})
    workers = sorted({lease.worker for lease in verdict.leases})
    rows = [f"worker {number + 1}" for number in workers]
    rows += sorted({mark.target for mark in verdict.marks if mark.target.startswith("node")})
    figure = Figure(figsize=(18, 1.5 + 0.75 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.invert_yaxis()
    axes.set_yticks([index + 0.5 for index in range(len(rows))], rows)
    axes.set_ylim(len(rows), 0)
    for index in range(len(rows)):
        axes.axhline(index, color="0.8", linewidth=0.5)
    _leases(axes, verdict, began_at, names, workers)
    for mark in verdict.marks:
        if mark.target in rows:
            _fault(axes, mark, began_at, rows.index(mark.target))
    if verdict.whole_at is not None:
        axes.axvline(verdict.whole_at - began_at, color="green", linestyle="--", linewidth=1)
    for violation in verdict.violations:
        axes.axvline(violation.at - began_at, color="red", linewidth=1.5)
    axes.set_xlabel("seconds; dashed green: all faults are over; red: a violation")
    axes.set_xlim(left=0)
    axes.set_title(title, loc="left")
    axes.legend(loc="upper right", ncols=len(names), fontsize=8, bbox_to_anchor=(1, 1.09))
    figure.savefig(path, format="svg")
    return True


def _leases(
    axes: Any, verdict: Verdict, began_at: float, names: list[str], workers: list[int]
) -> None:
    lane = BAND / len(names)
    bars: defaultdict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for lease in verdict.leases:
        bars[lease.worker, lease.resource].append((lease.start - began_at, lease.end - lease.start))
    for position, name in enumerate(names):
        for row, worker in enumerate(workers):
            place = (row + position * lane + 0.02, lane * 0.9)
            label = name if row == 0 else None
            axes.broken_barh(
                bars[worker, name], place, color=f"C{position}", label=label, linewidth=0.3
            )


def _fault(axes: Any, mark: Faulted, began_at: float, row: int) -> None:
    """On a worker's row below its leases; on a node's row over its height, or at a side's place."""
    is_node = mark.target.startswith("node")
    bottom, height = (row + 0.08, 0.84) if is_node else (row + BAND + 0.06, 0.9 - BAND)
    if mark.side is not None:
        height /= SIDES
        bottom += mark.side * height
    seconds = max(mark.until - mark.at, BAR_S_MIN)
    axes.broken_barh(
        [(mark.at - began_at, seconds)],
        (bottom, height),
        facecolor="0.85" if is_node else "mistyrose",
        edgecolor="0.3",
        linewidth=0.6,
    )
    place = (mark.at - began_at + 0.05, bottom + height / 2)
    axes.text(*place, mark.fault, fontsize=6, va="center", clip_on=True)
