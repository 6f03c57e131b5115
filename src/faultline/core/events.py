"""Events through the standard `logging` package: as text on a terminal, as JSON lines elsewhere. Silent unless configured;
argument values are never logged.

The names of events and of their fields are part of the contract: programs read them.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import warnings
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal, TextIO
from uuid import UUID

from faultline.core.running import job_fields

_logger = logging.getLogger("faultline.events")
logging.getLogger("faultline").addHandler(logging.NullHandler())

#: `auto` is text on a terminal, and JSON elsewhere.
LogForm = Literal["auto", "text", "json"]

#: Ids begin with their time. So much of one is enough for `faultline job`.
_SHORT_ID = 18
_PACKAGE = str(Path(__file__).parents[1])
_COLORS = {logging.WARNING: 33, logging.ERROR: 31, logging.CRITICAL: 31}

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

#: The level of each event. ERROR: a person must act, or Faultline has given up on something. WARNING: a problem that was
#: handled. INFO: what a worker or a person did. DEBUG: what each single job does.
LEVELS: dict[str, int] = {
    # jobs
    "job_enqueued": DEBUG,
    "lease_acquired": DEBUG,
    "lease_renewed": DEBUG,
    "execution_started": DEBUG,
    "job_completed": DEBUG,
    "job_released": DEBUG,
    "job_suspended": DEBUG,
    "job_started_over": DEBUG,
    "job_cancelled": INFO,
    "jobs_expired": WARNING,
    "attempt_failed": WARNING,
    "attempt_interrupted": WARNING,
    "attempt_left_behind": ERROR,
    "attempt_stopped": WARNING,
    "job_failed": ERROR,
    "failed_after_completion": WARNING,
    "task_name_shared": WARNING,
    "arguments_unfit": WARNING,
    "queue_unused": WARNING,
    "task_unknown": WARNING,
    "step_failed": WARNING,
    "program_changed": WARNING,
    "program_change_not_recorded": WARNING,
    "changed_programs_due": INFO,
    "changed_programs_not_tried": WARNING,
    "backoff_failed": WARNING,
    "hook_failed": WARNING,
    "hooks_dropped": WARNING,
    "thread_abandoned": WARNING,
    "threads_exhausted": ERROR,
    "traces_unknown": WARNING,
    # leases and endings
    "lease_lost": WARNING,
    "lease_reaped": WARNING,
    "stale_write_blocked": WARNING,
    "refusal_not_recorded": WARNING,
    "stream_not_written": WARNING,
    "job_reconciled": WARNING,
    "mark_failed": WARNING,
    "completion_delayed": WARNING,
    "completion_resumed": INFO,
    "completion_failed": ERROR,
    "completions_exhausted": ERROR,
    "ending_not_written": ERROR,
    "send_failed": ERROR,
    # workers
    "worker_started": INFO,
    "worker_stopping": INFO,
    "worker_exit": INFO,
    "worker_gave_up": ERROR,
    "worker_swept_away": ERROR,
    "lifespan_failed": ERROR,
    "service_ended": WARNING,
    "worker_died": ERROR,
    "worker_replaced": INFO,
    "process_not_started": ERROR,
    "task_process_replaced": WARNING,
    "worker_not_started": ERROR,
    "worker_leave_failed": WARNING,
    "process_ended": WARNING,
    "event_loop_blocked": WARNING,
    "event_loop_timeout": ERROR,
    "loop_resumed": WARNING,
    "stop_overdue": ERROR,
    "signals_taken_back": WARNING,
    "unstarted_given_back": WARNING,
    "unstarted_unanswered": WARNING,
    "companion_died": WARNING,
    "companion_failed": WARNING,
    "companion_resumed": INFO,
    "database_unavailable": WARNING,
    "job_connections_short": WARNING,
    "heartbeat_failed": WARNING,
    "clock_stepped": WARNING,
    "older_server_refused": WARNING,
    "announce_failed": WARNING,
    "subscribe_failed": WARNING,
    "declare_failed": WARNING,
    "schedules_failed": WARNING,
    "schedule_failed": WARNING,
    "queue_not_declared": ERROR,
    "budget_not_declared": ERROR,
    "groups_missing": WARNING,
    "claim_failed": WARNING,
    "claim_unanswered": WARNING,
    "claim_answered_late": INFO,
    "listener_lost": WARNING,
    "polling_only": INFO,
    "hint_not_understood": WARNING,
    "upkeep_failed": WARNING,
    "resolve_failed": WARNING,
    "sample_failed": WARNING,
    "poll_failed": WARNING,
    # the service
    "request_failed": ERROR,
    "invariants_unchecked": WARNING,
    "live_changes_late": WARNING,
    "live_changes_failed": ERROR,
    "stream_given_up": INFO,
    "role_not_taken": WARNING,
    "job_cancelled_by_request": INFO,
    "job_retried_by_request": INFO,
    "job_undone_by_request": INFO,
    "jobs_cancelled_by_request": INFO,
    "jobs_retried_by_request": INFO,
    "job_forked_by_request": INFO,
    "signal_sent": INFO,
    "queue_paused_by_request": INFO,
    "queue_resumed_by_request": INFO,
    "limit_set_by_request": INFO,
    "limit_reset_by_request": INFO,
    "budget_set_by_request": INFO,
    "budget_reset_by_request": INFO,
    "api_key_added": INFO,
    "api_key_revoked": INFO,
    "setting_changed": INFO,
    "task_unsubscribed": INFO,
    "schedule_declared": INFO,
    "limits_declared": INFO,
    "limits_overridden": INFO,
    "schedule_set_by_request": INFO,
    "schedule_removed_by_request": INFO,
    "schedule_paused_by_request": INFO,
    "schedule_resumed_by_request": INFO,
    "schedule_run_by_request": INFO,
    "schedule_backfilled_by_request": INFO,
}

EventField = str | int | float | bool | UUID | None


def emit(event: str, *, level: int | None = None, **fields: EventField) -> None:
    """Log one event at the level in `LEVELS`. `fields` describe jobs and leases, never arguments or results."""
    level = LEVELS.get(event, INFO) if level is None else level
    if _logger.isEnabledFor(level):
        _logger.log(level, "%s", event, extra={"faultline_event": event, "faultline_fields": fields})


#: Whether events of single jobs are logged. Call it once before a loop over many jobs.
are_detailed = partial(_logger.isEnabledFor, logging.DEBUG)


def emit_detail(event: str, **fields: EventField) -> None:
    """Log an event of a single job, at DEBUG: there may be ten thousand a second."""
    emit(event, level=DEBUG, **fields)


class JsonLines(logging.Formatter):
    """A log formatter: one JSON object per line, with the time, the event and its fields. Other records: event `log`.

    :param timespec: How exact the times are, as for `datetime.isoformat`.
    """

    def __init__(self, timespec: str = "milliseconds") -> None:
        super().__init__()
        self._timespec = timespec

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec=self._timespec)
        line: dict[str, object] = {"at": at, "level": record.levelname.lower()}
        event = getattr(record, "faultline_event", None)
        if event is None:
            line |= {"event": "log", "logger": record.name, "message": record.getMessage(), **job_fields()}
            if record.exc_info:
                line["error"] = self.formatException(record.exc_info)
        else:
            line |= {"event": event, **getattr(record, "faultline_fields", {})}
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """A log formatter for people: the time, the level, the event, its task and job, then everything else.

    An error follows as Python prints it, without the frames of Faultline itself.

    :param colors: Color the level by terminal escapes.
    """

    def __init__(self, *, colors: bool = False) -> None:
        super().__init__()
        self._colors = colors

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname:8}"
        if self._colors and record.levelno in _COLORS:
            level = f"\x1b[{_COLORS[record.levelno]}m{level}\x1b[0m"
        event = getattr(record, "faultline_event", None)
        fields = dict(getattr(record, "faultline_fields", {})) if event is not None else job_fields()
        error = fields.pop("error", None) if event is not None else None
        words = [f"{datetime.fromtimestamp(record.created, UTC).astimezone():%H:%M:%S}.{int(record.msecs):03} {level}"]
        words += [event] if event is not None else [f"{record.name}: {record.getMessage()}"]
        words += [str(task)] if (task := fields.pop("task", None)) else []
        words += [str(job_id)[:_SHORT_ID]] if (job_id := fields.pop("job_id", None)) else []
        words += [f"{name}={value}" for name, value in fields.items() if value is not None]
        line = "  ".join(words)
        if error is not None:
            first, _, frames = str(error).partition("\n")
            line += f"\n{_as_python_prints(first, frames)}" if frames else f"  error={first}"
        return line + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


def _as_python_prints(error: str, rest: str) -> str:
    """A stored error, whose first line says what it is, in the order in which people know it. Frames of the task alone."""
    blocks = re.split(r'^(?=  File ")', f"{rest.rstrip()}\n", flags=re.MULTILINE)
    if len(blocks) == 1:
        return f"{error}\n{rest.rstrip()}"
    theirs = [block for block in blocks[1:] if not block.startswith(f'  File "{_PACKAGE}{os.sep}')] or blocks[1:]
    message = "\n".join(part for part in (error, blocks[0].rstrip()) if part)
    return f"Traceback (most recent call last):\n{''.join(theirs)}{message}"


def log_events(
    stream: TextIO | None = None,
    *,
    level: int = logging.INFO,
    timespec: str = "milliseconds",
    form: LogForm = "auto",
) -> logging.Handler:
    """Log events. Returns the handler, so that it can be removed.

    On standard error, so become records of other libraries, such as psycopg, that no handler of the program takes: a log has
    lines of one kind.

    :param stream: Where to write. Default: standard error.
    :param level: The lowest level to log. `logging.DEBUG` shows what every single job does.
    :param timespec: How exact the times of JSON are, as for `datetime.isoformat`.
    :param form: `text` for people, `json` for programs; `auto` is text on a terminal and JSON elsewhere.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    is_terminal = handler.stream.isatty()
    if form == "text" or (form == "auto" and is_terminal):
        handler.setFormatter(TextLines(colors=is_terminal and "NO_COLOR" not in os.environ))
    else:
        handler.setFormatter(JsonLines(timespec))
    if stream is None and logging.lastResort is not None:
        logging.lastResort.setFormatter(handler.formatter)
    events = logging.getLogger("faultline")
    events.addHandler(handler)
    events.setLevel(level)
    return handler


def warn(text: str) -> None:
    """Warn of a line of the program, as Python does of its own."""
    frame, level = sys._getframe(), 1  # noqa: SLF001 - to show the line of the program, not one of ours
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("faultline."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, RuntimeWarning, stacklevel=level)
