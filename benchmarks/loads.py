"""The loads: each runs one subject for a moment and returns figures by name.

Short on purpose: the runner alternates between subjects many times, so that whatever else the machine
does meets all of them alike.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from statistics import median, quantiles

from aioredlock2.embedded import Server
from benchmarks.subjects import Subject

__all__ = ["Figures", "Load", "frozen_node", "one_task", "tasks"]

Figures = dict[str, float]
Load = Callable[[Subject], Awaitable[Figures]]

STALL_S = 0.06
"""A frozen node may cost something until its first deadline has passed: 50 ms, and some air."""


def one_task(pairs: int) -> Load:
    """Uncontended pairs, one after the other: latencies in microseconds, client CPU per pair."""

    async def load(subject: Subject) -> Figures:
        acquires, releases = [], []
        await _warm_up(subject)
        cpu = time.process_time()
        for _ in range(pairs):
            began = time.perf_counter()
            held = await subject.acquire("one-task")
            acquired = time.perf_counter()
            await subject.release(held)
            acquires.append(acquired - began)
            releases.append(time.perf_counter() - acquired)
        cpu = time.process_time() - cpu
        both = [acquire + release for acquire, release in zip(acquires, releases, strict=True)]
        return {
            "acquire p50 us": median(acquires) * 1e6,
            "release p50 us": median(releases) * 1e6,
            "pair p50 us": median(both) * 1e6,
            "pair p99 us": quantiles(both, n=100)[98] * 1e6,
            "client CPU us/pair": cpu / pairs * 1e6,
        }

    return load


def tasks(count: int, pairs: int) -> Load:
    """`count` tasks at once, each with a name of its own, `pairs` pairs in all."""

    async def load(subject: Subject) -> Figures:
        async def work(name: str) -> None:
            for _ in range(pairs // count):
                await subject.release(await subject.acquire(name))

        await _warm_up(subject)
        began, cpu = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for index in range(count):
                group.create_task(work(f"task-{index}"))
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        done = pairs // count * count
        return {"pairs/s": done / took, "client CPU us/pair": cpu / done * 1e6}

    return load


def frozen_node(server: Server, seconds: float) -> Load:
    """Acquire with all nodes healthy, then with `server` stopped; `seconds` each."""

    async def load(subject: Subject) -> Figures:
        await _warm_up(subject)
        healthy = [took for _, took in await _acquires(subject, seconds)]
        server.freeze()
        try:
            frozen = await _acquires(subject, seconds)
        finally:
            server.thaw()
        first = [took for at, took in frozen if at < STALL_S]
        later = [took for at, took in frozen if at >= STALL_S]
        await asyncio.sleep(0.2)  # the thawed server works off what it was sent
        return {
            "healthy p50 us": median(healthy) * 1e6,
            "frozen p50 us": median(later) * 1e6,
            "frozen / healthy": median(later) / median(healthy),
            f"first {STALL_S * 1000:.0f} ms p50 us": median(first) * 1e6,
            "frozen max us": max(took for _, took in frozen) * 1e6,
        }

    return load


async def _acquires(subject: Subject, seconds: float) -> list[tuple[float, float]]:
    """Pairs for so long: when each began, and how long its acquire took."""
    taken = []
    start = time.perf_counter()
    while (began := time.perf_counter()) - start < seconds:
        held = await subject.acquire("frozen-node")
        taken.append((began - start, time.perf_counter() - began))
        await subject.release(held)
    return taken


async def _warm_up(subject: Subject) -> None:
    """Garbage of others is not this subject's cost; caches and branches are warm in real use."""
    gc.collect()
    for _ in range(20):
        await subject.release(await subject.acquire("warm-up"))
