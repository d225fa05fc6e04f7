"""What every test has: servers as good as new, a seeded generator, a loop that is watched.

Environment: `AIOREDLOCK2_SEED` repeats a run's random choices, `AIOREDLOCK2_TEST_LOOP` chooses the
loop: asyncio (default), debug (asyncio in debug mode) or uvloop.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

import pytest

from aioredlock2.embedded import Server, Servers
from tests.support import servers as server_kinds
from tests.support.pool import ServerPool
from tests.support.relay import Relays
from tests.support.servers import Kind, Unavailable
from tests.support.view import Address, View

LOOP = os.environ.get("AIOREDLOCK2_TEST_LOOP", "asyncio")
SEED = int(os.environ.get("AIOREDLOCK2_SEED") or random.SystemRandom().randrange(2**32))
NODES = 5
SERVER_FIXTURES = {"any_kind", "fresh_servers", "pool"}
VERSIONS = pytest.StashKey[list[str]]()
LOOP_TURNS = 3
"""What a task that was told to end may take to end."""


def pytest_configure(config: pytest.Config) -> None:
    if LOOP not in {"asyncio", "debug", "uvloop"}:
        raise pytest.UsageError(f"AIOREDLOCK2_TEST_LOOP={LOOP} is not asyncio, debug or uvloop")
    config.stash[VERSIONS] = []
    config.option.asyncio_debug = LOOP == "debug"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Run in the background of a script: the programs that tests interrupt would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return f"aioredlock2: loop {LOOP}, AIOREDLOCK2_SEED={SEED}"


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if LOOP != "uvloop":
        return {LOOP: asyncio.new_event_loop}
    import uvloop

    return {LOOP: uvloop.new_event_loop}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Get the servers before the first test: a build takes longer than a test may."""
    gc.freeze()  # nothing collected so far is garbage; makes the collection after each test cheap
    asked = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if session.config.option.collectonly or not asked & SERVER_FIXTURES:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    for kind in Kind:
        if reporter and not server_kinds.is_ready(kind):
            reporter.write_line(f"getting {kind.package} (once; redis8 is built for two minutes)")
        if reason := _why_unavailable(kind):
            session.config.stash[VERSIONS].append(f"{kind.label}: not here: {reason}")
        else:
            version = server_kinds.version(server_kinds.binary(kind))
            session.config.stash[VERSIONS].append(f"{kind.label}: {version}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for line in config.stash[VERSIONS]:
        terminalreporter.write_line(line)


def _why_unavailable(kind: Kind) -> str:
    try:
        server_kinds.binary(kind)
    except Unavailable as reason:
        return str(reason)
    return ""


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """A generator that depends on the run's seed and the test's name only."""
    return random.Random(f"{SEED} {request.node.nodeid}")


# --- servers ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def pool() -> Generator[ServerPool]:
    """Shared servers of any kind: ``pool.take(Kind.REDIS8, 3)``."""
    with ServerPool() as running:
        yield running


@pytest.fixture
def servers(pool: ServerPool) -> Sequence[Server]:
    """Five servers of the default kind."""
    return pool.take(Kind.VALKEY9, NODES)


@pytest.fixture
def servers3(pool: ServerPool) -> Sequence[Server]:
    """Three servers of the default kind."""
    return pool.take(Kind.VALKEY9, 3)


@pytest.fixture(params=list(Kind), ids=lambda kind: kind.label)
def any_kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of server in turn; skipped, with the reason, where it can't be had."""
    kind: Kind = request.param
    if reason := _why_unavailable(kind):
        pytest.skip(reason)
    return kind


@pytest.fixture
def any_servers3(pool: ServerPool, any_kind: Kind) -> Sequence[Server]:
    """Three servers of each kind in turn."""
    return pool.take(any_kind, 3)


class StartServers(Protocol):
    def __call__(
        self, nodes: int = 1, kind: Kind = Kind.VALKEY9, options: Sequence[str] = ()
    ) -> Servers: ...


@pytest.fixture
def fresh_servers() -> Generator[StartServers]:
    """Servers of the test's own: ``fresh_servers(1, Kind.REDIS8, ["--maxmemory", "2mb"])``."""
    started: list[Servers] = []

    def start(nodes: int = 1, kind: Kind = Kind.VALKEY9, options: Sequence[str] = ()) -> Servers:
        if reason := _why_unavailable(kind):
            pytest.skip(reason)
        started.append(server_kinds.start(kind, nodes, options))
        return started[-1]

    yield start
    for group in started:
        group.stop()


@pytest.fixture
def relays(servers: Sequence[Server]) -> Generator[Relays]:
    """A relay in front of each of `servers`."""
    with Relays(servers) as running:
        yield running


@pytest.fixture
def relays3(servers3: Sequence[Server]) -> Generator[Relays]:
    """A relay in front of each of `servers3`."""
    with Relays(servers3) as running:
        yield running


@pytest.fixture
def view() -> Generator[Callable[[Address], View]]:
    """The view of a server, one connection per server: ``view(servers[0]).get(b"redlock:x")``."""
    views: dict[Address, View] = {}

    def look(server: Address) -> View:
        if server not in views:
            views[server] = View(server)
        return views[server]

    yield look
    for each in views.values():
        each.close()


# --- the loop -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def stray_errors(request: pytest.FixtureRequest) -> Generator[list[dict[str, Any]]]:
    """Fails an async test if anything reached its loop's exception handler."""
    errors: list[dict[str, Any]] = []
    yield errors
    if _is_async(request):
        gc.collect()  # "exception was never retrieved" is said on collection
    if errors:
        told = [f"{error['message']}: {error.get('exception')!r}" for error in errors]
        pytest.fail(f"the loop's exception handler was called: {told}", pytrace=False)


@pytest.fixture(autouse=True)
def watch_loop(request: pytest.FixtureRequest, stray_errors: list[dict[str, Any]]) -> None:
    """Has async tests run in a watched loop, and leaves the others without one."""
    if _is_async(request):
        request.getfixturevalue("watched_loop")


def _is_async(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("asyncio") is not None


@pytest.fixture
async def watched_loop(stray_errors: list[dict[str, Any]]) -> AsyncGenerator[None]:
    """Set up before a test's other fixtures and checked after they are gone: no task is left."""
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: stray_errors.append(context)
    )
    yield
    for _ in range(LOOP_TURNS):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        pytest.fail(f"tasks left over: {[repr(task) for task in left]}", pytrace=False)
