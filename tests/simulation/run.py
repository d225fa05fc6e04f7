"""`nox -s simulate`: many seeds, one seed replayed, or planted bugs to be found.

nox -s simulate -- --seeds 300            seeds 0 to 299; exits with 1 if any shows a violation
nox -s simulate -- --seed 17              one seed with its options, faults and leases
nox -s simulate -- --mutations            every planted bug, and after how many seeds it is found
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.simulation import mutations
from tests.simulation.options import draw
from tests.simulation.report import story
from tests.simulation.simulation import simulate

__all__ = ["Outcome", "hunt", "main", "run_seeds", "try_seed"]

SHOWN = 5
"""Violations of one seed that are printed."""
SEEDS_PER_MUTATION = 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one seed came to, in a form that passes between processes."""

    seed: int
    seconds: float
    took: float
    """CPU seconds."""
    leases: int
    commands: int
    faults: int
    violations: tuple[str, ...]
    explained: tuple[str, ...]


def try_seed(seed: int, seconds: float = 60.0) -> Outcome:
    """Simulate one seed."""
    began = time.process_time()
    result = simulate(draw(seed, seconds))
    return Outcome(
        seed,
        seconds,
        time.process_time() - began,
        len(result.history.tenures),
        len(result.history.commands),
        len(result.history.faults),
        tuple(result.verdict.violations),
        tuple(result.verdict.explained),
    )


def run_seeds(seeds: Iterable[int], workers: int) -> Iterator[Outcome]:
    """Outcomes in the order of the seeds."""
    if workers == 1:
        yield from map(try_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(try_seed, seeds)


def replay_command(seed: int) -> str:
    """How to see that seed again."""
    return f"nox -s simulate -- --seed {seed}"


def _many(seeds: range, workers: int) -> int:
    bad, explained, leases, faults = 0, 0, 0, 0
    simulated, took = 0.0, 0.0
    for outcome in run_seeds(seeds, workers):
        simulated += outcome.seconds
        took += outcome.took
        leases += outcome.leases
        faults += outcome.faults
        explained += len(outcome.explained)
        if outcome.violations:
            bad += 1
            print(f"seed {outcome.seed}: {len(outcome.violations)} violations")
            for line in outcome.violations[:SHOWN]:
                print(f"  {line}")
            print(f"  replay: {replay_command(outcome.seed)}", flush=True)
    print(
        f"{leases} leases, {faults} faults, {explained} overlaps where an assumption was broken on "
        f"purpose; {simulated / took:.0f} simulated seconds per second and core"
    )
    print(f"{len(seeds)} seeds, {bad} violations")
    return 1 if bad else 0


def _one(seed: int, seconds: float) -> int:
    result = simulate(draw(seed, seconds))
    for line in story(result):
        print(line)
    bad = len(result.verdict.violations)
    print(f"1 seeds, {1 if bad else 0} violations (history {result.digest})")
    return 1 if bad else 0


def hunt(mutation: mutations.Mutation, seeds: Iterable[int]) -> tuple[int, str] | None:
    """How many seeds it took to find a planted bug, and by which violation; None if none did."""
    with mutation.planted():
        for number, seed in enumerate(seeds, start=1):
            violations = try_seed(seed).violations
            if violations:
                kinds = collections.Counter(line.split()[1] for line in violations)
                return number, ", ".join(kind for kind, _ in kinds.most_common(3))
    return None


def _hunt_by_name(name: str) -> tuple[str, tuple[int, str] | None]:
    return name, hunt(mutations.MUTATIONS[name], range(SEEDS_PER_MUTATION))


def _mutations(workers: int, names: list[str]) -> int:
    missed = 0
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for name, found in pool.imap_unordered(_hunt_by_name, names):
            missed += found is None
            after = f"seed {found[0]:3d}  {found[1]}" if found else "NOT FOUND"
            print(f"{name:48s} {after}", flush=True)
    print(f"{len(names)} mutations, {missed} not found within {SEEDS_PER_MUTATION} seeds")
    return 1 if missed else 0


def main(arguments: list[str]) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="nox -s simulate --", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--seconds", type=float, default=60.0, help="simulated, when replaying")
    parser.add_argument("--mutations", action="store_true", help="find the planted bugs")
    parser.add_argument("--only", action="append", help="only this planted bug")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    if given.seed is not None:
        return _one(given.seed, given.seconds)
    if given.mutations:
        return _mutations(given.workers, given.only or list(mutations.MUTATIONS))
    return _many(range(given.first, given.first + given.seeds), given.workers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
