from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from faultline.core import events
from tests import reference

if TYPE_CHECKING:
    import io

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
        "announce_failed", "attempt_failed", "attempt_interrupted", "backoff_failed", "claim_failed", "claim_unanswered",
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
