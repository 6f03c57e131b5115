"""How programs share one server. The promise: there is one while somebody uses it, and none right after."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from faultline import embedded
from tests.embedded.programs import FAST, Program, environment, eventually, keeper_pid, left_running, query

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long


def test_two_programs_share_one_server_and_the_last_to_leave_ends_it(folder: Path) -> None:
    with Program(folder) as one, Program(folder) as two:
        assert one.said() == two.said()
        query(one.said()["dsn"], "create table t as select 7 as x")
        one.leave()
        assert query(two.said()["dsn"], "select x from t") == [(7,)]
        two.leave()
        assert left_running(folder) == []


def test_nothing_runs_any_more_when_close_returns(folder: Path) -> None:
    for _ in range(3):
        with embedded.join(folder, settings=FAST) as server:
            assert query(server.dsn, "select current_user, current_database()") == [("faultline", "faultline")]
            pid = keeper_pid(folder)
        assert left_running(folder) == []
        assert not os.path.exists(f"/proc/{pid}/exe")  # noqa: PTH110 - a zombie has none either
        assert not embedded.status(folder).running


def test_a_program_may_join_twice(folder: Path) -> None:
    with embedded.join(folder, settings=FAST) as outer:
        with embedded.join(folder) as inner:
            assert inner.dsn == outer.dsn
            inner.close()  # and once more at the end of the block: closing twice is nothing
        assert query(outer.dsn, "select 1") == [(1,)]
        assert embedded.status(folder).users == 1


def test_a_server_is_stopped_after_its_last_user_was_killed(folder: Path) -> None:
    with Program(folder) as one, Program(folder) as two:
        one.said()
        two.said()
        one.kill()
        assert query(two.said()["dsn"], "select 1") == [(1,)]
        two.kill()
        assert eventually(lambda: not left_running(folder), 3)


def test_eight_programs_starting_at_once_make_one_server(new_folder: Path) -> None:
    with ExitStack() as stack:
        programs = [stack.enter_context(Program(new_folder)) for _ in range(8)]
        assert len({program.said()["pid"] for program in programs}) == 1
        assert embedded.status(new_folder).users == 8
        for program in programs:
            program.ask_to_leave()
        for program in programs:
            program.leave()
        assert left_running(new_folder) == []


def test_programs_coming_and_going_always_find_a_server(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import psycopg; from faultline import embedded\n"
        "for _ in range(6):\n"
        "    with embedded.join(Path(sys.argv[1]), settings={'fsync': 'off', 'shared_buffers': '16MB'}) as server:\n"
        "        psycopg.connect(server.dsn).close()\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    programs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) for _ in range(4)]
    for program in programs:
        complaint = program.communicate(timeout=60)[1]
        assert program.returncode == 0, complaint
    assert left_running(folder) == []


def test_a_forked_child_does_not_leave_in_its_parents_name(folder: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from faultline import embedded\n"
        "server = embedded.join(Path(sys.argv[1]), settings={'fsync': 'off', 'shared_buffers': '16MB'})\n"
        "if not os.fork(): sys.exit(0)\n"
        "os.wait(); print(embedded.status(Path(sys.argv[1])).running)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True, env=environment()
    )
    assert done.stdout == "True\n"
    assert left_running(folder) == []


def test_a_started_server_runs_without_users_until_it_is_stopped(new_folder: Path) -> None:
    before = embedded.status(new_folder)
    assert not before.running
    assert not new_folder.exists(), "to ask for the status makes nothing"
    assert not embedded.stop(new_folder)

    started = embedded.start(new_folder, settings=FAST)
    assert started.running
    assert started.kept
    assert started.version == str(embedded.find_binaries().major)
    with Program(new_folder) as user:
        assert user.said()["pid"] == started.pid
        user.leave()
    assert embedded.status(new_folder).users == 0
    assert query(started.dsn or "", "select 1") == [(1,)]

    with Program(new_folder) as user:
        user.said()
        assert embedded.stop(new_folder), "whoever uses it"
        assert left_running(new_folder) == []
        assert not embedded.stop(new_folder)
        assert not embedded.status(new_folder).kept


def test_a_server_kept_before_a_reboot_is_not_kept_after_it(folder: Path) -> None:
    with embedded.join(folder, settings=FAST):
        (folder / "kept").write_text("the boot before this one\n")
        assert not embedded.status(folder).kept
    assert left_running(folder) == []


def test_a_programs_own_tables_are_not_made_in_the_schema_faultline(folder: Path) -> None:
    """The login has the schema's name, and PostgreSQL would look there first."""
    with embedded.join(folder, settings=FAST) as server:
        query(server.dsn, "create schema faultline")
        query(server.dsn, "create table faultline.made_before as select 1 as n")

        query(server.dsn, "create table orders as select 7 as n")

        assert query(server.dsn, "select schemaname::text from pg_tables where tablename = 'orders'") == [("public",)]
        # What somebody has made there is found.
        assert query(server.dsn, "select n from made_before") == [(1,)]
