"""Commands about queues and workers, and the live view of both."""

from __future__ import annotations

import json
import re
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from faultline.store import verbs
from faultline_proof.reads import audit
from tests.cli.commands import faultline
from tests.cli.terminal import Terminal
from tests.web.conftest import away

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.driver import Driver


def test_queues_are_counted_and_shown(queue: Driver, dsn: str) -> None:
    queue.enqueue(queue="mail")
    queue.enqueue(queue="mail", delay_seconds=3600)

    shown, told = faultline("queues", "--dsn", dsn), faultline("queues", "--dsn", dsn, "--json")

    assert shown.stdout.splitlines()[1].split()[:3] == ["mail", "1", "1"]
    line = json.loads(told.stdout)
    assert (line["name"], line["due"], line["delayed"]) == ("mail", 1, 1)


def test_a_queue_is_paused_with_a_reason_and_goes_on(queue: Driver, dsn: str) -> None:
    queue.enqueue(queue="mail")

    assert faultline("queues", "pause", "mail", "--reason", "no server", "--dsn", dsn).stdout.startswith("mail paused since")
    assert queue.claim(queue="mail") == []
    assert "paused: no server" in faultline("queues", "--dsn", dsn).stdout
    assert faultline("queues", "resume", "mail", "--dsn", dsn).stdout == "mail resumed\n"
    assert len(queue.claim(queue="mail")) == 1
    assert faultline("queues", "resume", "mail", "--dsn", dsn).stdout == "mail was not paused\n"


def test_a_reason_of_several_lines_is_one_line_of_the_table(queue: Driver, dsn: str) -> None:
    queue.enqueue(queue="mail")
    faultline("queues", "pause", "mail", "--reason", "no server\n\tand no\r\npower", "--dsn", dsn)

    shown = faultline("queues", "--dsn", dsn, COLUMNS="400").stdout

    assert "paused: no server and no power, by " in shown
    assert len(shown.splitlines()) == 2


def heartbeat(queue: Driver, name: str, host: str) -> None:
    queue.run(verbs.heartbeat(name, host=host, pid=4711, version="1", queues=["mail"], sleeping=[], watched=False))


def test_workers_are_shown_and_a_machine_without_a_live_one_is_unhealthy(queue: Driver, dsn: str) -> None:
    heartbeat(queue, "elsewhere", "another-machine")
    queue.run(
        verbs.heartbeat(
            "newer", host="another-machine", pid=4712, version="2.0.1", queues=["mail"], sleeping=[], watched=False
        )
    )
    heartbeat(queue, "here", socket.gethostname())

    here, everywhere = faultline("workers", "--here", "--json", "--dsn", dsn), faultline("workers", "--dsn", dsn)
    queue.run(verbs.unregister_worker("here"))
    gone = faultline("workers", "--here", "--dsn", dsn)

    assert [json.loads(line)["id"] for line in here.stdout.splitlines()] == ["here"]
    assert {line.split()[0] for line in everywhere.stdout.splitlines()[1:]} == {"elsewhere", "newer", "here"}
    assert [line.split()[3] for line in everywhere.stdout.splitlines() if line.startswith("newer")] == ["2.0.1"]
    assert (here.returncode, gone.returncode) == (0, 1)


def test_top_prints_one_look_for_pipes(queue: Driver, dsn: str) -> None:
    queue.enqueue(queue="mail")
    heartbeat(queue, "w", "machine")

    looked = faultline("top", "--once", "--dsn", dsn)

    assert looked.returncode == 0
    assert "1 due" in looked.stdout
    assert "mail" in looked.stdout
    assert "machine" in looked.stdout
    assert "\x1b[" not in looked.stdout
    head = looked.stdout.splitlines()[0]
    assert re.fullmatch(r"faultline top  database \S+, PostgreSQL \S+  \d\d:\d\d:\d\d", head)


def test_a_queue_that_no_worker_serves_is_marked(queue: Driver, dsn: str) -> None:
    queue.enqueue(queue="mail")
    queue.enqueue(queue="paper")
    heartbeat(queue, "w", "machine")
    queue.execute("update faultline.workers set heartbeat_at = faultline.clock() + interval '1 hour'")

    marked = {
        line.split()[0] for line in faultline("queues", "--dsn", dsn).stdout.splitlines() if "no worker serves it" in line
    }

    assert marked == {"paper"}


def test_top_needs_a_terminal(dsn: str) -> None:
    asked = faultline("top", "--dsn", dsn)

    assert (asked.returncode, asked.stderr) == (
        1,
        "faultline: standard output is not a terminal; print once with: faultline top --once\n",
    )


@pytest.fixture
def terminal(dsn: str) -> Iterator[Terminal]:
    opened = Terminal("top", "--every", "0.2", "--dsn", dsn)
    yield opened
    opened.close()


@pytest.mark.parametrize(("how", "code"), [("q", 0), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_top_leaves_the_terminal_as_it_was(terminal: Terminal, how: str | signal.Signals, code: int) -> None:
    terminal.read_until("No workers are running")
    assert terminal.now != terminal.before

    if isinstance(how, signal.Signals):
        terminal.signal(how)
    else:
        terminal.press(how)

    terminal.read_until("\x1b[?1049l")
    terminal.read_until("\x1b[?25h")
    assert terminal.wait() == code
    assert terminal.now == terminal.before


def test_a_pause_of_a_queue_that_no_worker_serves_is_noted(queue: Driver, dsn: str) -> None:
    queue.heartbeat("w")

    noted = faultline("queues", "pause", "mial", "--dsn", dsn)
    served = faultline("queues", "pause", "default", "--dsn", dsn)

    assert noted.stdout.startswith("mial paused since ")
    assert noted.stderr == "note: no worker serves mial; they serve default\n"
    assert served.stderr == ""


def test_top_goes_on_when_its_connections_are_cut(terminal: Terminal, queue: Driver) -> None:
    terminal.read_until("No workers are running")

    for _ in range(3):
        sessions = queue.run(audit.sessions())
        queue.run(audit.end_sessions(sessions))
        terminal.seen = ""
        terminal.read_until("No workers are running")

    terminal.press("q")
    terminal.read_until("\x1b[?1049l")
    assert terminal.wait() == 0


def test_top_says_that_the_database_is_away_and_since_when(terminal: Terminal, queue: Driver, dsn: str) -> None:
    terminal.read_until("No workers are running")

    queue.connection.close()
    with away(dsn):
        terminal.seen = ""
        terminal.read_until("The database has not answered since ")
    terminal.seen = ""
    terminal.read_until("No workers are running")

    terminal.press("q")
    terminal.read_until("\x1b[?1049l")
