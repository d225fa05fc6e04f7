"""The suite itself: a short run finds nothing, and a bad history ends it with status 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.__main__ import main
from tests.faults.history import Ended, Granted, History


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


def kept(path: Path, second_starts: float) -> Path:
    """A history of two leases of one name; the first ends at 2."""
    with History(path) as history:
        for pid, start, end in ((1, 1.0, 2.0), (2, second_starts, 4.0)):
            history.write(
                Granted(
                    at=start,
                    worker=pid,
                    pid=pid,
                    lease=1,
                    resource="x",
                    asked_at=start,
                    valid_until=9,
                    fence=pid,
                )
            )
            history.write(Ended(at=end, pid=pid, lease=1, valid_until=9, how="released"))
    return path


def test_a_kept_history_is_judged_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["--judge", str(kept(tmp_path / "good.jsonl", 2.0))])
    bad = str(kept(tmp_path / "bad.jsonl", 1.5))
    assert 1 == main(["--judge", bad])
    assert "overlap at 1.500: 500.0 ms: x worker" in capsys.readouterr().out
    assert 0 == main(["--judge", bad, "--beyond"])


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="drawn with matplotlib, from the extra 'faults'")
    main(["--judge", str(kept(tmp_path / "good.jsonl", 2.0))])
    assert "<svg" in (tmp_path / "good.svg").read_text()
