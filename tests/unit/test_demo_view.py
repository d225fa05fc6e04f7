"""The demo's live view and final table, drawn from made-up facts for all kinds of terminals."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from aioredlock2._demo.history import Ending, Section
from aioredlock2._demo.report import as_json, as_table, in_a_word
from aioredlock2._demo.scene import Ballot, Holder, Light, News, NodeView, Presence, Scene, Speed
from aioredlock2._demo.settings import Settings
from aioredlock2._demo.verdict import Gap, Overlap, Verdict
from aioredlock2._demo.view import SceneView

NODES = [
    NodeView(
        number=number,
        address=f"127.0.0.1:{21000 + number}",
        server="valkey 9.1.2",
        light=light,
        ballot=ballot,
        guard_left=1.83,
    )
    for number, (light, ballot) in enumerate(
        [
            (Light.UP, Ballot.GRANTED),
            (Light.DEAD, Ballot.SILENT),
            (Light.FROZEN, Ballot.SILENT),
            (Light.GUARDED, Ballot.NONE),
            (Light.UP, Ballot.OTHER),
        ],
        1,
    )
]

SCENE = Scene(
    settings=Settings(),
    phase="running",
    at=11.2,
    seconds_left=8.3,
    nodes=NODES,
    holder=Holder(worker=3, pid=81234, presence=Presence.INSIDE, seconds=0.81),
    digest="1f3a9c02",
    remaining=0.71,
    sections=1234,
    rate=87.2,
    by_worker=[312, 320, 299, 303],
    longest_wait=1.2,
    longest_gap=1.01,
    news=[News(at, f"event {at:g} " + "and more " * 20) for at in range(1, 21)],
)

GOOD = Verdict(
    sections=10,
    by_worker={1: 4, 2: 6},
    overlaps=(),
    longest_wait=1.23456789,
    gaps=(),
    lost=0,
    overruns=(),
    deaths=0,
)
FAULTS = {"node kills": 1, "node freezes": 0, "holder kills": 4}


def drawn(thing: RenderableType, width: int, height: int = 40, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding, newline="\n")
    Console(file=file, width=width, height=height, force_terminal=False).print(thing)
    file.flush()
    return raw.getvalue().decode(encoding)


def test_the_state_and_the_vote_of_each_node_are_shown() -> None:
    rows = [line for line in drawn(SceneView(SCENE), 100).splitlines() if "127.0.0.1" in line]
    for row, node in zip(rows, NODES, strict=True):
        assert node.address in row
        assert node.light.value in row
    assert "guarded 1.8 s" in rows[3]
    assert "granted" in rows[0]


def test_the_holder_its_validity_and_the_figures_are_shown() -> None:
    text = drawn(SceneView(SCENE), 100)
    for part in (
        "worker 3",
        "pid 81234",
        "0.71 s",
        "1f3a9c02",
        "1234",
        "87/s",
        "1: 312",
        "9 s left",
    ):
        assert part in text


def test_where_the_newest_holder_is_is_said() -> None:
    gone = Holder(worker=3, pid=81234, presence=Presence.GONE, seconds=0.81)
    killed = replace(gone, presence=Presence.KILLED)
    assert "nobody yet" in drawn(SceneView(replace(SCENE, holder=None)), 80)
    assert "nobody  last was worker 3" in drawn(SceneView(replace(SCENE, holder=gone)), 80)
    assert "worker 3  killed 0.81 s ago" in drawn(SceneView(replace(SCENE, holder=killed)), 80)


def test_an_overlap_is_shown_at_once() -> None:
    assert "overlaps 2" in drawn(SceneView(replace(SCENE, overlaps=2)), 80)


@pytest.mark.parametrize("width", [36, 40, 50, 60, 68, 80, 100, 200])
@pytest.mark.parametrize("nodes", [1, 5, 15])
def test_every_line_fits_the_terminal(width: int, nodes: int) -> None:
    scene = replace(SCENE, nodes=(NODES * 3)[:nodes])
    for line in drawn(SceneView(scene), width).splitlines():
        assert len(line) <= width


@pytest.mark.parametrize("height", [24, 30, 40, 100])
def test_the_view_is_no_higher_than_the_terminal(height: int) -> None:
    assert len(drawn(SceneView(SCENE), 80, height).splitlines()) < height


def test_the_newest_events_are_shown_last() -> None:
    text = drawn(SceneView(SCENE), 80, 24)
    assert "event 20" in text
    assert text.index("event 19") < text.index("event 20")
    assert "event 1 " not in text


def test_a_terminal_without_unicode_gets_ascii() -> None:
    text = drawn(SceneView(SCENE), 60, encoding="ascii")
    assert "x dead" in text
    assert "+ granted" in text


def test_the_speed_is_taken_over_the_last_moments() -> None:
    speed = Speed()
    assert speed.rate(0.0, 0) == 0.0
    assert speed.rate(1.0, 50) == 50.0
    assert speed.rate(2.0, 100) == 50.0
    assert speed.rate(5.0, 100) == 0.0


def test_the_object_carries_the_figures() -> None:
    facts = as_json(replace(GOOD, gaps=(_gap(1.0),)), Settings(), FAULTS)
    assert facts["sections"] == 10
    assert facts["overlaps"] == 0
    assert facts["longest_wait_s"] == 1.2346
    assert facts["longest_gap_s"] == 1.0
    assert facts["faults"] == 5
    assert facts["faults_by_kind"] == FAULTS
    assert facts["ok"] is True


def test_a_gap_that_was_not_measured_is_null() -> None:
    assert as_json(GOOD, Settings(), FAULTS)["longest_gap_s"] is None


def test_the_table_sets_the_longest_gap_against_the_ttl() -> None:
    text = drawn(as_table(replace(GOOD, gaps=(_gap(1.0), _gap(0.5))), Settings(), FAULTS), 100)
    assert "2, next section after at most 1.00 s (ttl 1 s)" in text
    assert "1 node kill, 4 holder kills" in text


def test_the_table_tells_what_went_wrong() -> None:
    first, second = _section(1.0, 2.0, 1), _section(1.5, 3.0, 2)
    verdict = replace(
        GOOD,
        overlaps=(Overlap(first, second),),
        gaps=(Gap(_section(1.0, 2.0, 1), None),),
        lost=1,
        overruns=(replace(first, overrun=0.25),),
        deaths=2,
    )
    text = drawn(as_table(verdict, Settings(), {}), 100)
    assert "worker 1 (pid 1) and 2 (pid 2) for 0.5000 s" in text
    assert "nobody after it" in text
    assert "workers that failed" in text
    assert "by 0.25 s" in text


@pytest.mark.parametrize(
    ("verdict", "word"),
    [
        (GOOD, "No two workers"),
        (replace(GOOD, sections=0), "FAILED: nobody"),
        (replace(GOOD, deaths=1), "FAILED: a worker died"),
        (
            replace(
                GOOD,
                overlaps=(
                    Overlap(
                        Section(worker=1, pid=1, start=0, end=2),
                        Section(worker=2, pid=2, start=1, end=3),
                    ),
                ),
            ),
            "FAILED: two workers",
        ),
    ],
)
def test_the_last_line_says_what_it_all_comes_to(verdict: Verdict, word: str) -> None:
    assert in_a_word(verdict).plain.startswith(word)
    assert verdict.is_good is (verdict is GOOD)


def test_nothing_done_is_no_failure_after_an_interrupt() -> None:
    assert "FAILED" not in in_a_word(replace(GOOD, sections=0), interrupted=True).plain


def _section(start: float, end: float, worker: int) -> Section:
    return Section(worker=worker, pid=worker, start=start, end=end)


def _gap(seconds: float) -> Gap:
    killed = replace(_section(1.0, 2.1, 1), ending=Ending.KILLED, killed_at=2.0)
    return Gap(killed, _section(2.0 + seconds, 9.0, 2))
