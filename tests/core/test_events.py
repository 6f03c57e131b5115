from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from faultline.core import events
from tests import reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline import Faultline


def test_an_event_is_one_json_line_with_its_fields(log: io.StringIO) -> None:
    events.emit("stale_write_blocked", job_id="j", stale_token=1, current_token=2, reason="token_mismatch")

    line = json.loads(log.getvalue())
    assert line.pop("at").endswith("+00:00")
    assert line == {
        "level": "warning",
        "event": "stale_write_blocked",
        "job_id": "j",
        "stale_token": 1,
        "current_token": 2,
        "reason": "token_mismatch",
    }


def test_events_are_silent_unless_configured(capfd: pytest.CaptureFixture[str]) -> None:
    events.emit("lease_acquired", job_id="j", token=1, level=logging.ERROR)

    assert capfd.readouterr() == ("", "")


def test_a_plain_record_of_the_package_becomes_a_json_line_too(log: io.StringIO) -> None:
    logging.getLogger("faultline.anything").warning("two\nlines with %s", '"quotes"')

    (line,) = log.getvalue().splitlines()
    assert json.loads(line)["message"] == 'two\nlines with "quotes"'


def test_argument_values_are_never_logged(app: Faultline, log: io.StringIO) -> None:
    logging.getLogger("faultline").setLevel(logging.DEBUG)

    @app.task
    def charge(card: str) -> None: ...

    handle = charge.options(idempotency_key="k").enqueue("4111-1111")

    assert json.loads(log.getvalue())["job_id"] == str(handle.id)
    assert "4111" not in log.getvalue()


def test_every_event_has_a_level_and_every_level_an_event() -> None:
    """Programs and alerts depend on both. `fault_took_effect` is told by drills alone, `_DETAILS` names what jobs do."""
    emitted = set(re.findall(r"^\| `(\w+)` \|", reference.event_names(), re.MULTILINE))

    assert emitted - events.LEVELS.keys() == set()
    assert events.LEVELS.keys() - emitted == {"job_released", "job_suspended", "job_started_over"}


#: What an engineer must see without asking for more than the defaults: errors need somebody, warnings were dealt with.
CONTRACT = {
    "error": {
        "attempt_left_behind", "completion_failed", "completions_exhausted", "job_failed", "live_changes_failed",
        "request_failed", "send_failed", "threads_exhausted", "worker_died", "worker_gave_up",
    },
    "warning": {
        "announce_failed", "arguments_unfit", "attempt_failed", "attempt_interrupted", "backoff_failed", "claim_failed",
        "claim_unanswered",
        "completion_delayed", "database_unavailable", "heartbeat_failed", "hint_not_understood", "invariants_unchecked",
        "job_connections_short", "job_reconciled", "lease_lost", "lease_reaped", "listener_lost", "live_changes_late",
        "mark_failed", "process_ended", "refusal_not_recorded", "role_not_taken", "sample_failed", "stale_write_blocked",
        "task_unknown", "thread_abandoned", "traces_unknown", "upkeep_failed", "worker_leave_failed",
    },
}  # fmt: skip


@pytest.mark.parametrize("level", ["error", "warning"])
def test_the_levels_of_events_are_a_contract(level: str) -> None:
    found = {name for name, number in events.LEVELS.items() if logging.getLevelName(number).lower() == level}

    assert CONTRACT[level] <= found


def test_an_event_is_logged_at_its_level(log: io.StringIO) -> None:
    for name in ("job_failed", "attempt_failed", "worker_started", "lease_renewed"):
        events.emit(name)

    assert [json.loads(line)["level"] for line in log.getvalue().splitlines()] == ["error", "warning", "info"]


def test_what_libraries_log_is_json_too_unless_the_program_has_a_handler_for_it() -> None:
    program = (
        "import logging; from faultline import log_events; log_events();"
        "logging.getLogger('psycopg').warning('error ignored in rollback on %s', 'x');"
        "logging.basicConfig(format='mine: %(message)s'); logging.getLogger('psycopg').warning('again')"
    )

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr.splitlines()

    line = json.loads(said[0])
    assert (line["event"], line["logger"], line["message"]) == ("log", "psycopg", "error ignored in rollback on x")
    assert said[1:] == ["mine: again"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


FRAMES = f"""ValueError: no such customer
  File "{Path(events.__file__).parents[1]}/worker/executor.py", line 12, in run
    await call()
  File "shop/mail.py", line 31, in send_mail
    find(customer)"""


@contextlib.contextmanager
def logging_to(stream: io.StringIO, form: events.LogForm = "auto") -> Iterator[None]:
    handler = events.log_events(stream, form=form)
    try:
        yield
    finally:
        logging.getLogger("faultline").removeHandler(handler)


def test_a_log_on_a_terminal_is_for_people() -> None:
    stream = Terminal()

    with logging_to(stream):
        events.emit("attempt_failed", task="send_mail", job_id=UUID(int=5), attempt=1, again_in=None, error=FRAMES)
        events.emit("worker_started", queue="mail")
        events.emit("claim_failed", queue="mail", error="the server is away")

    first, head, frame, source, error, *others = re.sub(r"\x1b\[\d+m", "", stream.getvalue()).splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} WARNING   attempt_failed  send_mail  00000000-0000-0000  attempt=1", first)
    assert [head, frame, source, error] == [
        "Traceback (most recent call last):",
        '  File "shop/mail.py", line 31, in send_mail',
        "    find(customer)",
        "ValueError: no such customer",
    ]
    assert [line[13:] for line in others] == [
        "INFO      worker_started  queue=mail",
        "WARNING   claim_failed  queue=mail  error=the server is away",
    ]


def test_what_follows_the_first_line_of_an_error_follows_it_on_a_terminal_too() -> None:
    stream = Terminal()

    with logging_to(stream):
        events.emit(
            "job_failed", error='UndefinedTable: no "x"\nLINE 1: select\n        ^\n  File "a.py", line 1, in f\n    g()'
        )

    assert stream.getvalue().splitlines()[1:] == [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "    g()",
        'UndefinedTable: no "x"',
        "LINE 1: select",
        "        ^",
    ]


@pytest.mark.parametrize(("stream", "form"), [(io.StringIO(), "auto"), (Terminal(), "json")])
def test_a_log_that_is_piped_or_asked_for_as_json_is_json(stream: io.StringIO, form: events.LogForm) -> None:
    with logging_to(stream, form):
        events.emit("worker_started", queue="mail")

    assert json.loads(stream.getvalue())["event"] == "worker_started"


def test_the_error_of_faultline_itself_keeps_its_frames() -> None:
    stream = Terminal()

    with logging_to(stream):
        events.emit("job_failed", error="\n".join(FRAMES.splitlines()[:3]))

    assert "executor.py" in stream.getvalue()
