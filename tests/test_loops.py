"""The tests marked `loop` again: under asyncio's debug mode, under uvloop, and under `python -O`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

MODES = {
    "debug": ([], "debug"),
    "uvloop": ([], "uvloop"),
    "optimised": (["-O"], "asyncio"),
}


@pytest.mark.timeout(420)
@pytest.mark.parametrize("mode", MODES)
def test_the_loop_tests_pass_in_every_mode(mode: str) -> None:
    """Cancellation, timers and transports differ from loop to loop; the promises don't."""
    flags, loop = MODES[mode]
    command = [sys.executable, *flags, "-m", "pytest", "-q", "-m", "loop", "tests"]
    ran = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"AIOREDLOCK2_TEST_LOOP": loop},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-1000:]
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed is not None, ran.stdout[-1000:]
    assert int(passed[1]) >= 40
