"""A tape tells what several processes saw, whatever became of them."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest

from faultline.app.application import Faultline
from faultline.core.model import Submission
from faultline_proof import tape
from faultline_proof.tape import Recording

if TYPE_CHECKING:
    from pathlib import Path

    from faultline_proof.history import History

CLIENT = """"client"
[1,1.0,"sent","enqueue_many",[["j",null,null,"k"]]]
[1,2.0,"told",[["i"]]]
[2,5.5,"sent","enqueue_many",[["m",null,null,null]]]
[2,5.6,"lost"]
"""
WORKER = """"worker"
[1,3.0,"sent","claim",[[null,null,"w/1"]]]
[1,4.0,"told",[["i",1],["h",7]]]
[1,5.0,"sent","begin",[]]
[1,5.1,"told",[]]
[1,5.2,"sent","complete",[["i",1,"w/1"],["h",7,"w/1"]]]
[1,5.3,"told",[["h",7,"w/1","busy"]]]
[1,5.4,"sent","commit",[]]
[1,6.0,"told",[]]
"""


def told(history: History) -> list[tuple[object, ...]]:
    return [(op.process, op.verb, op.job_id, op.token, op.outcome, op.ended_at) for op in history.operations]


def written(folder: Path, **tapes: str) -> list[Path]:
    for name, text in tapes.items():
        (folder / name).write_text(text)
    return [folder / name for name in tapes]


def test_the_tapes_of_several_processes_are_one_history(tmp_path: Path) -> None:
    history = tape.read(written(tmp_path, worker=WORKER, client=CLIENT, nothing=""))

    assert told(history) == [
        ("client", "enqueue", "i", None, "ok", 2.0),
        ("worker", "claim", None, None, "ok", 4.0),
        ("worker", "claim", "i", 1, "ok", 4.0),
        ("worker", "claim", "h", 7, "ok", 4.0),
        ("worker", "complete", "i", 1, "ok", 6.0),
        ("worker", "complete", "h", 7, "failed", 5.3),
        ("client", "enqueue", "m", None, "unknown", 5.6),
    ]


def test_a_session_stays_on_tape_when_it_was_lent_and_handed_back(dsn: str, tmp_path: Path) -> None:
    with Recording.to(tmp_path / "w", "w") as recording, Faultline(dsn, host=recording.host()) as app:
        for key in ("a", "b", "c"):
            with app.database.connection() as connection:
                app.using(connection).enqueue_many([Submission("t", idempotency_key=key)])
            asyncio.run(_enqueued_async(app, f"async {key}"))
    history = tape.read([tmp_path / "w"])

    keys = [operation.key for operation in history.operations if operation.verb == "enqueue"]
    assert keys == ["a", "async a", "b", "async b", "c", "async c"]


async def _enqueued_async(app: Faultline, key: str) -> None:
    for half in ("first", "second"):
        async with app.async_database.connection() as connection:
            if half == "second":
                await app.using(connection).aenqueue_many([Submission("t", idempotency_key=key)])
    await app.async_database.close()


def test_a_line_that_was_cut_off_by_a_kill_is_no_line(tmp_path: Path) -> None:
    history = tape.read(written(tmp_path, worker=WORKER[:-5]))

    assert told(history)[-2:] == [
        ("worker", "complete", "i", 1, "unknown", math.inf),
        ("worker", "complete", "h", 7, "failed", 5.3),
    ]


def test_an_answer_that_came_too_late_to_be_judged_is_none(tmp_path: Path) -> None:
    history = tape.read(written(tmp_path, worker=WORKER), until=3.5)

    assert told(history) == [
        ("worker", "claim", None, None, "unknown", math.inf),
        ("worker", "complete", "i", 1, "unknown", math.inf),
        ("worker", "complete", "h", 7, "unknown", math.inf),
    ]


KILLED = """
import os, signal, sys
from pathlib import Path
from faultline.core.faults import Faults
from faultline.core.model import Submission
from faultline_proof.tape import Recording
from faultline.app.application import Faultline

class Kill(Faults):
    wanted = True

    def reach(self, point):
        if point == sys.argv[3]:
            os.kill(os.getpid(), signal.SIGKILL)

with Recording.to(Path(sys.argv[2]), "c") as recording, Faultline(sys.argv[1], host=recording.host(faults=Kill())) as app:
    app.enqueue_many([Submission("t")])
"""


def test_what_a_killed_process_has_sent_is_on_its_tape(dsn: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, dsn, str(tmp_path / "c"), "after_enqueue_committed"]
    killed = subprocess.run(command, check=False, env=os.environ)

    assert killed.returncode == -signal.SIGKILL
    (operation,) = tape.read([tmp_path / "c"]).operations
    with Faultline(dsn) as app:
        assert app.job(UUID(operation.job_id)).task == "t"


def test_what_fails_without_being_a_verb_undoes_what_was_done_before(dsn: str, tmp_path: Path) -> None:
    with (
        Recording.to(tmp_path / "c", "c") as recording,
        Faultline(dsn, host=recording.host()) as app,
        app.database.connect() as session,
    ):
        session.execute("begin")
        app.using(session).enqueue_many([Submission("t")])
        with pytest.raises(psycopg.OperationalError):
            session.execute("select pg_terminate_backend(pg_backend_pid())")

    assert [operation.outcome for operation in tape.read([tmp_path / "c"]).operations] == ["failed"]


def test_a_transaction_that_the_driver_begins_is_on_tape(dsn: str, tmp_path: Path) -> None:
    with (
        Recording.to(tmp_path / "c", "c") as recording,
        Faultline(dsn) as app,
        recording.connect(dsn) as connection,
    ):
        app.using(connection).enqueue_many([Submission("t")])
        unfinished = tape.read([tmp_path / "c"])
        connection.commit()

    finished = tape.read([tmp_path / "c"])
    assert [[op.outcome for op in history.operations] for history in (unfinished, finished)] == [["unknown"], ["ok"]]
