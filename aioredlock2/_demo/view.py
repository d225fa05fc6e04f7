"""Draws a scene for a terminal of any width. Knows rich, and nothing of what makes the scene."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Group
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aioredlock2._demo.scene import Ballot, Holder, Light, NodeView, Presence, Scene

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, OverflowMethod, RenderResult

__all__ = ["SceneView"]

LIGHTS = {
    Light.CONNECTING: ("○", "o", "dim"),
    Light.UP: ("●", "*", "green"),
    Light.GUARDED: ("◔", "~", "yellow"),
    Light.FROZEN: ("❄", "#", "bright_cyan"),
    Light.DEAD: ("✖", "x", "bold red"),
    Light.DOWN: ("✖", "x", "red"),
}
"""Symbol, the same for terminals without Unicode, style."""

BALLOTS = {
    Ballot.GRANTED: ("✔", "+", "green"),
    Ballot.OTHER: ("≠", "!", "yellow"),
    Ballot.NONE: ("·", "-", "dim"),
    Ballot.SILENT: ("…", ".", "dim"),
}
BALLOT_TEXT = {
    Ballot.GRANTED: "granted",
    Ballot.OTHER: "to another",
    Ballot.NONE: "no key",
    Ballot.SILENT: "no answer",
}

WIDTH_MAX = 100
BAR_WIDTH_MAX = 48
LABEL_WIDTH = len("by worker")
NEWS_MIN, NEWS_MAX = 3, 10
ROWS_BESIDE_NEWS = 16
"""Lines of the view without its nodes and news, with one to spare for the prompt."""
ROOM_FOR_ADDRESSES = 56
ROOM_FOR_SERVERS = 72
"""Width inside the frame from which on there is room for these of a node."""


class SceneView:
    """A scene, ready to be printed by rich."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay it out for the width and height of this console."""
        width = min(options.max_width, WIDTH_MAX)
        inner = width - 4
        scene, ascii_only = self._scene, options.ascii_only
        body = Group(
            _nodes(scene, inner, ascii_only=ascii_only),
            Text(),
            _holder(scene, inner),
            Text(),
            _figures(scene),
            Text(),
            *_news(scene, console.size.height, ascii_only=ascii_only),
        )
        yield Panel(
            body,
            box=ROUNDED,
            width=width,
            title=_title(scene, wide=inner >= ROOM_FOR_ADDRESSES),
            title_align="left",
            subtitle=_clock(scene),
            subtitle_align="right",
            border_style="dim",
        )


def _title(scene: Scene, *, wide: bool) -> Text:
    settings = scene.settings
    title = Text("aioredlock2 demo", "bold not dim")
    if wide:
        title.append(
            f"   {settings.workers} processes, one lock, {settings.nodes} nodes, "
            f"ttl {settings.ttl:g} s",
            "not bold",
        )
    return title


def _clock(scene: Scene) -> Text:
    text = Text(scene.phase, "not dim")
    if scene.seconds_left:
        text.append(f", {math.ceil(scene.seconds_left)} s left")
    return text


def _nodes(scene: Scene, width: int, *, ascii_only: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, expand=True, padding=(0, 1), header_style="dim", show_edge=False)
    table.add_column("node", width=4, justify="right")
    overflow = _overflow(ascii_only=ascii_only)
    if width >= ROOM_FOR_ADDRESSES:
        table.add_column("address", min_width=15, no_wrap=True, overflow=overflow)
    if width >= ROOM_FOR_SERVERS:
        table.add_column("server", ratio=1, no_wrap=True, overflow=overflow, style="dim")
    table.add_column("state", min_width=15, no_wrap=True, overflow=overflow)
    table.add_column("vote", min_width=12, no_wrap=True, overflow=overflow)
    for node in scene.nodes:
        row: list[str | Text] = [str(node.number)]
        if width >= ROOM_FOR_ADDRESSES:
            row.append(node.address)
        if width >= ROOM_FOR_SERVERS:
            row.append(node.server)
        row += [_light(node, ascii_only=ascii_only), _ballot(node, ascii_only=ascii_only)]
        table.add_row(*row)
    return table


def _overflow(*, ascii_only: bool) -> OverflowMethod:
    """What is too long ends in an ellipsis, which is a character not every terminal has."""
    return "crop" if ascii_only else "ellipsis"


def _light(node: NodeView, *, ascii_only: bool) -> Text:
    *symbols, style = LIGHTS[node.light]
    text = f"{symbols[ascii_only]} {node.light.value}"
    if node.light is Light.GUARDED:
        text += f" {node.guard_left:.1f} s"
    return Text(text, style)


def _ballot(node: NodeView, *, ascii_only: bool) -> Text:
    *symbols, style = BALLOTS[node.ballot]
    return Text(f"{symbols[ascii_only]} {BALLOT_TEXT[node.ballot]}", style)


def _holder(scene: Scene, width: int) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, min_width=LABEL_WIDTH)
    grid.add_column(no_wrap=True)
    grid.add_row("holder", _who(scene.holder))
    lease = Table.grid(padding=(0, 1))
    share = scene.remaining / scene.settings.ttl
    colour = "green" if share > 0.5 else "yellow" if share > 0.2 else "red"
    bar = ProgressBar(
        total=scene.settings.ttl,
        completed=scene.remaining,
        width=max(8, min(BAR_WIDTH_MAX, width - 40)),
        complete_style=colour,
        finished_style=colour,
    )
    key = f"{scene.remaining:4.2f} s"
    lease.add_row(bar, Text(key), Text(scene.digest, "dim"))
    grid.add_row("validity", lease)
    return grid


def _who(holder: Holder | None) -> Text:
    if holder is None:
        return Text("nobody yet", "dim")
    if holder.presence is Presence.GONE:
        return Text(f"nobody  last was worker {holder.worker}", "dim")
    who = Text(f"worker {holder.worker}", "bold")
    if holder.presence is Presence.INSIDE:
        return who.append(f"  pid {holder.pid}  inside {holder.seconds:.2f} s", "not bold")
    who.append(f"  killed {holder.seconds:.2f} s ago  its lock must run out", "not bold magenta")
    return who


def _figures(scene: Scene) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, min_width=LABEL_WIDTH)
    grid.add_column()
    sections = Text(str(scene.sections), "bold").append(f"  {scene.rate:.0f}/s   ", "not bold")
    sections.append(f"overlaps {scene.overlaps}", "bold red" if scene.overlaps else "green")
    grid.add_row("sections", sections)
    grid.add_row("by worker", _by_worker(scene))
    waits = f"longest wait {scene.longest_wait:.2f} s"
    if scene.longest_gap is not None:
        waits += f", longest gap after a killed holder {scene.longest_gap:.2f} s"
    grid.add_row("waiting", waits)
    return grid


def _by_worker(scene: Scene) -> Text:
    holder = scene.holder
    inside = holder.worker if holder is not None and holder.presence is Presence.INSIDE else 0
    text = Text()
    for number, count in enumerate(scene.by_worker, 1):
        text.append(f"{number}:", "dim").append(
            f" {count}", "bold green" if number == inside else ""
        )
        text.append("   ")
    return text


def _news(scene: Scene, height: int, *, ascii_only: bool) -> list[Text]:
    rows = max(NEWS_MIN, min(NEWS_MAX, height - ROWS_BESIDE_NEWS - len(scene.nodes)))
    shown = list(scene.news)[-rows:]
    lines = [
        Text(
            f"{news.at:6.2f} s  ", "dim", no_wrap=True, overflow=_overflow(ascii_only=ascii_only)
        ).append(news.text, f"not dim {news.style}")
        for news in shown
    ]
    return lines + [Text()] * (rows - len(lines))
