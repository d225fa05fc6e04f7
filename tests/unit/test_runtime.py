"""The one place that reads time and entropy: which clock, whose randomness."""

from __future__ import annotations

import hashlib
import random
import re
import subprocess
import sys
import time

import pytest

from aioredlock2._runtime import Runtime, digest


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no such clock")
def test_f055_the_clock_is_the_one_that_counts_suspend(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def clock_gettime(clock_id: int) -> float:
        read.append(clock_id)
        return 12.5

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    assert Runtime().clock() == 12.5
    assert read == [time.CLOCK_BOOTTIME]


def test_f055_without_such_a_clock_the_monotonic_one_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    monkeypatch.setattr(time, "monotonic", lambda: 42.0)
    assert Runtime().clock() == 42.0


def test_f007_a_step_of_the_wall_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    before = runtime.clock()
    monkeypatch.setattr(time, "time", lambda: 1e12)
    monkeypatch.setattr(time, "time_ns", lambda: 10**21)
    assert 0 <= runtime.clock() - before < 60


def test_f065_a_token_is_128_fresh_bits_in_hex() -> None:
    runtime = Runtime()
    tokens = {runtime.new_token() for _ in range(1000)}
    assert len(tokens) == 1000
    assert all(re.fullmatch(rb"[0-9a-f]{32}", token) for token in tokens)
    bits = [int(token, 16) for token in tokens]
    for bit in range(128):
        ones = sum(number >> bit & 1 for number in bits)
        assert 380 < ones < 620, f"bit {bit} is set in {ones} of 1000 tokens"


def test_f065_seeding_the_global_generator_changes_neither_tokens_nor_jitter() -> None:
    drawn = []
    for _ in range(2):
        random.seed(7)
        runtime = Runtime()
        drawn.append((runtime.new_token(), runtime.rng.random()))
    (token, jitter), (other_token, other_jitter) = drawn
    assert token != other_token
    assert jitter != other_jitter


def test_jitter_comes_from_one_generator() -> None:
    runtime = Runtime()
    assert runtime.rng is runtime.rng
    assert runtime.rng.random() != runtime.rng.random()


def test_jitter_differs_in_processes_that_fork_before_its_first_use() -> None:
    """A client built at import, used in the workers: each seeds it from the system."""
    code = (
        "import os, random\n"
        "from aioredlock2._runtime import Runtime\n"
        "random.seed(7)\n"
        "runtime = Runtime()\n"
        "if os.fork() == 0: print(runtime.rng.random(), flush=True); os._exit(0)\n"
        "os.wait()\n"
        "print(runtime.rng.random())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    child, parent = done.stdout.split()
    assert child != parent


def test_the_module_reads_nothing_at_import() -> None:
    """No clock and no entropy before a client is made: DESIGN forbids module state."""
    code = (
        "import os, time, random\n"
        "def never(*_): raise SystemExit('read at import')\n"
        "import aioredlock2.errors\n"
        "os.urandom = time.clock_gettime = never\n"
        "import importlib.util as u, sys\n"
        "sys.modules.pop('aioredlock2._runtime', None)\n"
        "import aioredlock2._runtime\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_digest_names_a_token_without_giving_it_away() -> None:
    token = b"0123456789abcdef0123456789abcdef"
    assert digest(token) == hashlib.sha256(token).hexdigest()[:8]
    assert digest(token) not in token.decode()
    assert digest(token) != digest(token[::-1])
