"""The end of the demo: a table for people, one JSON object for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import ROUNDED
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aioredlock2._demo.settings import Settings
    from aioredlock2._demo.verdict import Verdict

__all__ = ["as_json", "as_table", "in_a_word"]

SHOWN_MAX = 5
"""Overlaps told one by one; more would only scroll the table away."""


def as_json(verdict: Verdict, settings: Settings, faults: Mapping[str, int]) -> dict[str, object]:
    """What ``--json`` prints. Times are seconds; null where nothing was measured."""
    gaps = [gap.seconds for gap in verdict.gaps]
    return {
        "ok": verdict.is_good,
        "sections": verdict.sections,
        "sections_by_worker": {str(number): n for number, n in verdict.by_worker.items()},
        "overlaps": len(verdict.overlaps),
        "longest_wait_s": _rounded(verdict.longest_wait),
        "longest_gap_s": _rounded(verdict.longest_gap),
        "gaps_s": [_rounded(gap) for gap in gaps],
        "faults": sum(faults.values()),
        "faults_by_kind": dict(faults),
        "leases_lost": verdict.lost,
        "overruns": len(verdict.overruns),
        "worker_deaths": verdict.deaths,
        "nodes": settings.nodes,
        "workers": settings.workers,
        "ttl_s": settings.ttl,
        "seconds": settings.seconds,
    }


def as_table(verdict: Verdict, settings: Settings, faults: Mapping[str, int]) -> Table:
    """What is shown when the workers have stopped and the record has been checked."""
    title = Text("The record, checked", "bold")
    table = Table(box=ROUNDED, title=title, title_justify="left", show_header=False, padding=(0, 1))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("critical sections", _sections(verdict))
    table.add_row("overlaps", _overlaps(verdict))
    table.add_row("longest wait", f"{verdict.longest_wait:.2f} s")
    table.add_row("killed holders", _gaps(verdict, settings))
    injected = [_count(count, kind) for kind, count in faults.items() if count]
    table.add_row("faults injected", ", ".join(injected) or "none")
    if verdict.lost:
        table.add_row("leases lost", f"{verdict.lost}, each worker was told and stopped")
    if verdict.overruns:
        worst = max(section.overrun for section in verdict.overruns)
        text = f"{len(verdict.overruns)} (a worker was paused past its lease, by {worst:.2f} s)"
        table.add_row("overruns", Text(text, "yellow"))
    if verdict.deaths:
        table.add_row("workers that failed", Text(str(verdict.deaths), "bold red"))
    return table


def _count(number: int, things: str) -> str:
    return f"{number} {things.removesuffix('s') if number == 1 else things}"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


def _sections(verdict: Verdict) -> Text:
    text = Text(str(verdict.sections), "bold" if verdict.sections else "bold red")
    counts = "  ".join(f"worker {number}: {n}" for number, n in verdict.by_worker.items())
    return text.append(f"   {counts}", "not bold dim")


def _overlaps(verdict: Verdict) -> Text:
    if not verdict.overlaps:
        return Text("0", "bold green")
    text = Text(str(len(verdict.overlaps)), "bold red")
    for overlap in verdict.overlaps[:SHOWN_MAX]:
        first, second = overlap.first, overlap.second
        text.append(
            f"\nworker {first.worker} (pid {first.pid}) and {second.worker} (pid {second.pid}) "
            f"for {overlap.seconds:.4f} s from {second.start:.4f}",
            "red",
        )
    return text


def _gaps(verdict: Verdict, settings: Settings) -> Text:
    measured = [gap.seconds for gap in verdict.gaps if gap.seconds is not None]
    text = Text(str(len(verdict.gaps)))
    if measured:
        text.append(f", next section after at most {max(measured):.2f} s (ttl {settings.ttl:g} s)")
    if len(measured) < len(verdict.gaps):
        text.append(f", {len(verdict.gaps) - len(measured)} at the end with nobody after it")
    return text


def in_a_word(verdict: Verdict, *, interrupted: bool = False) -> Text:
    """The last line: what it all comes to."""
    if verdict.overlaps:
        return Text("FAILED: two workers were inside at the same time.", "bold red")
    if verdict.deaths:
        return Text("FAILED: a worker died that nobody had killed.", "bold red")
    if not verdict.sections and interrupted:
        return Text("Interrupted before anybody obtained the lock.")
    if not verdict.sections:
        return Text("FAILED: nobody ever obtained the lock.", "bold red")
    return Text("No two workers were ever inside at the same time.", "bold green")
