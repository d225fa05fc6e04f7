"""A short run of the whole suite: it works, and finds nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.__main__ import main


@pytest.mark.timeout(120)
def test_twenty_seconds_of_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Some seconds longer on a busy machine: every worker comes to rest, every fault is healed."""
    status = main(["--minutes", "0.33", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert 0 == status, printed
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["counts"]["acquired"] > 0
    assert report["faults"]
    assert {} == report["violations"]
