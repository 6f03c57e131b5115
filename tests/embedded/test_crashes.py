"""What kill -9 does to an embedded server. The promise: the next start works, with every committed row."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from faultline import embedded
from faultline.core.errors import EmbeddedError
from tests.embedded.programs import FAST, Program, eventually, kill, kill_keeper, left_running, query

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.long


def test_a_killed_server_comes_back_with_its_data(folder: Path) -> None:
    with Program(folder) as user:
        dsn = user.said()["dsn"]
        query(dsn, "create table t as select 7 as x")
        for _ in range(3):
            pid = embedded.status(folder).pid
            assert pid
            kill(pid)
            assert query(dsn, "select x from t") == [(7,)]
            assert embedded.status(folder).pid != pid
        user.leave()
        assert left_running(folder) == []


def test_the_server_of_a_killed_keeper_is_adopted_and_stopped_in_the_end(folder: Path) -> None:
    with Program(folder) as one, Program(folder) as two:
        one.said()
        two.said()
        kill_keeper(folder)
        with Program(folder) as three:
            assert three.said() == one.said()
            for program in (one, two, three):
                program.kill()
        assert eventually(lambda: not left_running(folder), 3)


def test_an_adopted_server_that_is_killed_comes_back_too(folder: Path) -> None:
    with embedded.join(folder, settings=FAST) as first:
        kill_keeper(folder)
        with embedded.join(folder, settings=FAST) as server:
            pid = embedded.status(folder).pid
            assert pid
            kill(pid)
            assert query(server.dsn, "select 1") == [(1,)]
        first.close()
        assert left_running(folder) == []


def test_the_last_user_stops_the_server_when_its_keeper_was_killed(folder: Path) -> None:
    with embedded.join(folder, settings=FAST):
        kill_keeper(folder)
    assert left_running(folder) == []


def test_a_user_can_revive_what_was_killed_with_its_keeper(folder: Path) -> None:
    with embedded.join(folder, settings=FAST) as server:
        kill_keeper(folder)
        kill(embedded.status(folder).pid or 0)
        server.revive()
        assert query(server.dsn, "select 1") == [(1,)]
    assert left_running(folder) == []
    with pytest.raises(EmbeddedError, match=r"Call join\(\) again"):
        server.revive()


def test_a_server_without_keeper_can_be_stopped(folder: Path) -> None:
    embedded.start(folder, settings=FAST)
    kill_keeper(folder)
    assert embedded.stop(folder)
    assert left_running(folder) == []


def test_after_everything_was_killed_the_next_start_works(folder: Path) -> None:
    with Program(folder) as user:
        query(user.said()["dsn"], "create table t as select 7 as x")
        kill_keeper(folder)
        kill(user.said()["pid"])
        user.kill()
    with embedded.join(folder, settings=FAST) as server:
        assert query(server.dsn, "select x from t") == [(7,)]
    assert left_running(folder) == []


def _as_the_server(folder: Path) -> dict[str, int]:
    """PostgreSQL fears a living pid only if it may signal it; so the stranger runs as the server's user."""
    owner = (folder / "server" / "data").stat()
    return {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}


@pytest.fixture
def stranger(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"], cwd="/", **_as_the_server(folder))  # type: ignore[call-overload]
    yield process
    process.kill()
    process.wait()


def _record(folder: Path, pid: int) -> None:
    data = folder / "server" / "data"
    record = data / "postmaster.pid"
    record.write_text(f"{pid}\n{data}\n1700000000\n5432\n{folder / 'server' / 'socket'}\n\n  123  456\nready   \n")
    owner = data.stat()
    os.chown(record, owner.st_uid, owner.st_gid)


def test_a_pid_that_now_belongs_to_a_stranger_is_no_server(folder: Path, stranger: subprocess.Popen[bytes]) -> None:
    _record(folder, stranger.pid)
    assert not embedded.status(folder).running
    with embedded.join(folder, settings=FAST) as server:
        assert query(server.dsn, "select 1") == [(1,)]
    assert stranger.poll() is None, "and it is left alone"


def test_a_zombie_is_no_server(folder: Path, stranger: subprocess.Popen[bytes]) -> None:
    stranger.kill()
    assert eventually(lambda: ") Z" in (folder / f"/proc/{stranger.pid}/stat").read_text())
    _record(folder, stranger.pid)
    assert not embedded.status(folder).running
    with embedded.join(folder, settings=FAST) as server:
        assert query(server.dsn, "select 1") == [(1,)]


def test_an_empty_pid_file_does_not_keep_the_server_from_starting(folder: Path) -> None:
    record = folder / "server" / "data" / "postmaster.pid"
    record.touch()
    os.utime(record, (1700000000, 1700000000))
    embedded.join(folder, settings=FAST).close()


def test_an_initdb_killed_half_way_leaves_no_broken_data(new_folder: Path) -> None:
    with Program(new_folder) as user:
        assert eventually(lambda: list(new_folder.glob("server/initdb-*/base")))
        user.kill()
        for line in left_running(new_folder):
            kill(int(line.split()[0]))
    assert eventually(lambda: not left_running(new_folder))
    assert not (new_folder / "server" / "data").exists()
    with embedded.join(new_folder, settings=FAST) as server:
        assert query(server.dsn, "select 1") == [(1,)]
    assert not list(new_folder.glob("server/initdb-*"))


def test_a_server_whose_folder_was_removed_ends(folder: Path) -> None:
    with Program(folder) as user:
        user.said()
        shutil.rmtree(folder, ignore_errors=True)
        assert eventually(lambda: not left_running(folder), 5)
