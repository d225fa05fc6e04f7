"""The demo's record file: lines that any process can append and any can read while they grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from aioredlock2._demo.clock import now
from aioredlock2._demo.record import (
    Ended,
    Entered,
    Event,
    Left,
    Recorder,
    Stopped,
    Tail,
    parse,
    read_all,
)

EVENTS: list[Event] = [
    Entered(at=1.5, worker=2, pid=77, waited=0.25, valid_until=2.4),
    Left(at=1.75, worker=2, pid=77, valid_until=2.4, is_lost=False),
    Stopped(at=3.0, worker=2, pid=77, waited=0.0),
    Ended(at=3.25, worker=2, pid=77, killed_at=None),
    Ended(at=4.0, worker=1, pid=78, killed_at=3.9),
]


def test_every_event_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "record"
    with Recorder(path) as recorder:
        for event in EVENTS:
            recorder.write(event)
    assert EVENTS == read_all(path)


def test_two_recorders_append_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "record"
    with Recorder(path) as one, Recorder(path) as other:
        for event in EVENTS:
            one.write(event)
            other.write(event)
    assert [event for event in EVENTS for _ in range(2)] == read_all(path)


def test_a_tail_gives_each_event_once_and_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "record"
    with Recorder(path) as recorder:
        for event in EVENTS:
            recorder.write(event)
    whole = path.read_bytes()
    path.write_bytes(b"")
    tail = Tail(path)
    seen = []
    for position in range(len(whole)):
        with path.open("ab") as file:
            file.write(whole[position : position + 1])
        seen += tail.read()
    tail.close()
    assert seen == EVENTS


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "7",
        "[]",
        "{}",
        '{"event": "slept", "at": 1}',
        '{"event": "left", "at": 1}',
        '{"event": "ended", "at": 1, "worker": 1, "pid": 1, "killed_at": null, "more": 1}',
    ],
)
def test_anything_else_is_refused_and_shown(line: str) -> None:
    with pytest.raises(ValueError, match="not a line of a demo's record") as caught:
        parse(line)
    assert repr(line) in str(caught.value)


def test_the_clock_does_not_go_back() -> None:
    readings = [now() for _ in range(100)]
    assert readings == sorted(readings)
