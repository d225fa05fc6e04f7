"""All checks: `nox` runs lint, types and tests; `nox --list` shows the rest."""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "tests"]

PYTHONS = [
    classifier.rpartition(" ")[2]
    for classifier in nox.project.load_toml("pyproject.toml")["project"]["classifiers"]
    if classifier.startswith("Programming Language :: Python :: 3.")
]
# What the wheel is tested with: everything but the sources.
BESIDES_SOURCES = ["tests", "docs", "README.md", "conftest.py", "pyproject.toml"]


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and format."""
    session.install("-e", ".[lint]")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Mypy, strict, over the package, the tests and this file."""
    session.install("-e", ".[test,lint]", "nox")
    session.run("mypy")


@nox.session
def servers(session: nox.Session) -> None:
    """Fetch or build the servers the tests run against, and print their versions."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "tests.support.servers")


@nox.session
def tests(session: nox.Session) -> None:
    """The whole suite on the current Python."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(python=PYTHONS)
def matrix(session: nox.Session) -> None:
    """The whole suite on every supported Python that is installed."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
@nox.parametrize("mode", ["debug", "uvloop", "optimised"])
def loops(session: nox.Session, mode: str) -> None:
    """The tests marked `loop` under asyncio's debug mode, uvloop and `python -O`."""
    session.install("-e", ".[test]")
    loop = "asyncio" if mode == "optimised" else mode
    python = ["python", "-O"] if mode == "optimised" else ["python"]
    command = [*python, "-m", "pytest", "-m", "loop", *session.posargs]
    session.run(*command, env={"AIOREDLOCK2_TEST_LOOP": loop})


@nox.session
def models(session: nox.Session) -> None:
    """Every state of the models: a quarter of an hour. Words select cases by their names."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "tests.models", *session.posargs)


@nox.session
def machine(session: nox.Session) -> None:
    """Ten thousand random calls in memory, and as many over each kind of server."""
    session.install("-e", ".[test]")
    command = ["python", "-m", "pytest", "tests/machine", "-o", "timeout=0", *session.posargs]
    session.run(*command, env={"AIOREDLOCK2_STEPS": "10000"})


@nox.session
def docs(session: nox.Session) -> None:
    """The code blocks of the README and the documentation."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "README.md", "docs", *session.posargs)


@nox.session(reuse_venv=False)
def wheel(session: nox.Session) -> None:
    """Build the wheel, install it, and run the suite where the sources are not."""
    folder = Path(session.create_tmp()).resolve()
    shutil.rmtree(folder)
    folder.mkdir()
    session.install("build")
    session.run("python", "-m", "build", "--wheel", "--outdir", str(folder / "dist"))
    (built,) = (folder / "dist").iterdir()
    session.install(f"aioredlock2[test] @ {built.as_uri()}")
    for name in BESIDES_SOURCES:
        copy = shutil.copytree if Path(name).is_dir() else shutil.copy2
        copy(name, folder / name)
    session.chdir(folder)
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """Real servers, real faults: a history, judged (`-- --minutes 60 --server redis8`)."""
    session.install("-e", ".[test,faults]")
    session.run("python", "-m", "tests.faults", *session.posargs)


@nox.session
def simulate(session: nox.Session) -> None:
    """Seeds in virtual time: `--seeds N`, one replayed by `--seed S`, or `--mutations`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "tests.simulation.run", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """The figures, on a machine that does nothing else."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.run", *session.posargs)
