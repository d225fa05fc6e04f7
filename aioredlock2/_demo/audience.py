"""Whom the demo is shown to: a terminal that is redrawn, or lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from rich.live import Live
from rich.text import Text

from aioredlock2._demo.scene import Light
from aioredlock2._demo.view import SceneView

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

    from aioredlock2._demo.scene import News, Scene

__all__ = ["Audience", "Lines", "Screen"]


class Audience(Protocol):
    """A context manager that is told everything while it is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def tell(self, news: News) -> None:
        """Something happened."""

    def show(self, scene: Scene) -> None:
        """How things stand; called a few times a second."""


class Screen:
    """The live view, on the terminal's alternate screen; its last picture is left behind."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, screen=True, auto_refresh=False)
        self._last: SceneView | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()
        if self._last is not None:
            self._console.print(self._last)

    def tell(self, news: News) -> None:
        """The scene carries the news."""

    def show(self, scene: Scene) -> None:
        """Redraw."""
        self._last = SceneView(scene)
        self._live.update(self._last, refresh=True)


class Lines:
    """One line for each event, and now and then one for how things stand."""

    PERIOD_S = 5.0

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_at = self.PERIOD_S

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def tell(self, news: News) -> None:
        """Print it."""
        line = Text(f"{news.at:7.2f} s  {news.text}", no_wrap=True, overflow="ignore")
        self._console.print(line, crop=False, soft_wrap=True)

    def show(self, scene: Scene) -> None:
        """A line every few seconds."""
        if scene.at < self._next_at:
            return
        self._next_at += self.PERIOD_S
        self._console.print(_standing(scene), crop=False, soft_wrap=True)


def _standing(scene: Scene) -> str:
    votes = sum(node.light is Light.UP for node in scene.nodes)
    parts = (
        f"{scene.at:7.2f} s  {scene.sections} sections ({scene.rate:.0f}/s)",
        f"{scene.overlaps} overlaps",
        f"{votes} of {len(scene.nodes)} nodes up",
        f"{scene.seconds_left:.0f} s left",
    )
    return ", ".join(parts)
