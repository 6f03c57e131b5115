"""Operations on jobs, queues, schedules and keys: cancel, retry, pause, resume. Who did it, and why, is recorded.

Dashboard, API, command line and Python all use this, so operations are recorded and logged in one way. The database writes
the record in the transaction of the operation, with the login next to the name that the caller gave.

An operation is a `Statement`, for blocking and async databases; it is logged when its answer is read.
"""

from __future__ import annotations

from faultline.core.bounds import BY_LENGTH_MAX, REASON_LENGTH_MAX
from faultline.operate.actor import check_reason, plain, signature, this_user
from faultline.operate.flows import signal
from faultline.operate.jobs import CancelJobs, RetryFailed, cancel, fork, retry, undo
from faultline.operate.keys import add_key, revoke_key
from faultline.operate.limits import reset_budget, reset_limit, set_budget, set_limit
from faultline.operate.queues import pause, resume
from faultline.operate.schedules import (
    backfill,
    check_backfill,
    pause_schedule,
    remove_schedule,
    reset_schedule,
    resume_schedule,
    run_schedule,
    set_schedule,
)
from faultline.operate.settings import change_setting

__all__ = [
    "BY_LENGTH_MAX",
    "REASON_LENGTH_MAX",
    "CancelJobs",
    "RetryFailed",
    "add_key",
    "backfill",
    "cancel",
    "change_setting",
    "check_backfill",
    "check_reason",
    "fork",
    "pause",
    "pause_schedule",
    "plain",
    "remove_schedule",
    "reset_budget",
    "reset_limit",
    "reset_schedule",
    "resume",
    "resume_schedule",
    "retry",
    "revoke_key",
    "run_schedule",
    "set_budget",
    "set_limit",
    "set_schedule",
    "signal",
    "signature",
    "this_user",
    "undo",
]
