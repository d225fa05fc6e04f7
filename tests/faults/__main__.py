"""The library against real servers and real faults.

    python -m tests.faults [--minutes M] [--seed S] [--server valkey9|redis8|valkey8|redis62]
                           [--nodes N] [--workers N] [--beyond] [--chapter N] [--out DIRECTORY]
    python -m tests.faults --judge HISTORY [--beyond]

Workers in processes of their own contend for a few names; nodes, network and workers are harmed by a
schedule drawn from the seed, never more nodes at a time than the quorum can spare. Every grant,
extension, loss and release is written down, and judged chapter by chapter. Histories and pictures of
the first, the last and every bad chapter are kept in the directory, with report.json.

`--beyond` breaks the assumptions as well (no restart guard, majorities that forget): overlaps are then
counted, and the fences must still be in order. `--chapter N` plays the faults of that chapter of the
seed again; what the processes make of them is up to the machine. `--judge` judges a kept history anew.

Ends with status 1 on any violation.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from aioredlock2._demo.clock import now
from tests.faults import node_faults
from tests.faults.arena import Arena
from tests.faults.chapter import AFTERMATH_S, CHAPTER_S, FAULTS_S, play
from tests.faults.check import Verdict, judge
from tests.faults.crew import Crew
from tests.faults.history import read
from tests.faults.plan import GUARD_S
from tests.faults.report import Report
from tests.faults.timeline import paint
from tests.support import servers
from tests.support.servers import Kind

FAULTS_S_MIN = 5.0
WORKERS_MAX = 4


def main(arguments: list[str] | None = None) -> int:
    """Run, report, and return the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the servers and workers too
    options = _options(arguments)
    if options.judge is not None:
        return _judge_again(options)
    kind = next(kind for kind in Kind if kind.label == options.server)
    options.out.mkdir(parents=True, exist_ok=True)
    report = Report(
        {
            "server": servers.version(servers.binary(kind)),
            "nodes": options.nodes,
            "workers": options.workers,
            "seed": options.seed,
            "mode": "beyond the assumptions" if options.beyond else "within the assumptions",
        }
    )
    print(f"seed {options.seed}, {options.server}, {options.minutes:g} min; to {options.out}")
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        directory = Path(folder)
        with (
            Arena(kind, options.nodes, directory) as arena,
            Crew(options.workers, arena, options.out, guard=not options.beyond) as crew,
        ):
            for what in node_faults.impossible(arena):
                print(f"left out: {what} (no libfaketime here)")
            _run(arena, crew, report, options)
            for finished in crew.stop():
                if finished.status or finished.errors:
                    report.violations["worker failed"] += 1
                    report.told.append(f"at its end: {finished}")
    report.save(options.out / "report.json")
    print("\n".join(["", *report.told, *report.lines()]))
    return 1 if report.violations else 0


def _run(arena: Arena, crew: Crew, report: Report, options: argparse.Namespace) -> None:
    """Chapter by chapter, until the time is over."""
    ends_at = time.monotonic() + options.minutes * 60
    if not options.beyond:
        time.sleep(GUARD_S)
    number = options.chapter or 1
    while True:
        left = ends_at - time.monotonic() - AFTERMATH_S
        is_last = bool(options.chapter) or left < CHAPTER_S
        seconds = max(FAULTS_S_MIN, min(FAULTS_S, left))
        path = options.out / f"history-{number}.jsonl"
        path.unlink(missing_ok=True)
        seed = f"{options.seed} {number}"
        hung = play(arena, crew, path, seed=seed, seconds=seconds, beyond=options.beyond)
        verdict = judge(read(path), beyond=options.beyond, fences=report.fences)
        if hung:
            verdict.blame("hung", now(), hung)
        report.add(verdict)
        _tell(verdict, report, number, options)
        if number > 1 and not (verdict.violations or is_last):
            path.unlink()
        else:
            _paint(verdict, path, f"{options.server}, seed {options.seed}, chapter {number}")
        if is_last or hung:
            return
        number += 1


def _judge_again(options: argparse.Namespace) -> int:
    verdict = judge(read(options.judge), beyond=options.beyond)
    report = Report({"history": str(options.judge)})
    report.add(verdict)
    _paint(verdict, options.judge, options.judge.name)
    print("\n".join([*map(str, verdict.violations), *report.lines()]))
    return 1 if verdict.violations else 0


def _paint(verdict: Verdict, history: Path, title: str) -> None:
    if not paint(verdict, history.with_suffix(".svg"), title):
        print("no picture: matplotlib is not installed")


def _tell(verdict: Verdict, report: Report, number: int, options: argparse.Namespace) -> None:
    counts = verdict.counts
    print(
        f"chapter {number}: {counts['acquired']} acquired, {counts['lost']} lost, "
        f"{verdict.faults.total()} faults, longest gap {verdict.longest_gap:.2f} s, "
        f"{len(verdict.violations)} violations",
        flush=True,
    )
    if verdict.violations:
        replay = (
            f"python -m tests.faults --server {options.server} --seed {options.seed} "
            f"--nodes {options.nodes} --workers {options.workers} --chapter {number}"
            f"{' --beyond' if options.beyond else ''}"
        )
        print("\n".join(report.tell(number, verdict.violations, replay)), flush=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    labels = [kind.label for kind in Kind]
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--server", choices=labels, default=labels[0])
    parser.add_argument("--nodes", type=int, choices=range(3, 16, 2), default=5)
    parser.add_argument("--workers", type=int, choices=range(2, WORKERS_MAX + 1), default=4)
    parser.add_argument("--beyond", action="store_true")
    parser.add_argument("--chapter", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--judge", type=Path)
    options = parser.parse_args(arguments)
    if options.out is None:
        options.out = Path("build") / "faults" / f"{options.server}-{options.seed}"
    return options


if __name__ == "__main__":
    sys.exit(main())
