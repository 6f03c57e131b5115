"""Background jobs on PostgreSQL that stay correct when things go wrong."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline.app.application import Faultline as Faultline
    from faultline.app.blocking_job import BlockingJob as BlockingJob
    from faultline.app.handle import JobHandle as JobHandle
    from faultline.app.job import Job as Job
    from faultline.app.outcomes import Cancel as Cancel
    from faultline.app.outcomes import Retry as Retry
    from faultline.app.outcomes import Snooze as Snooze
    from faultline.app.tasks import Task as Task
    from faultline.core.errors import ConfigError as ConfigError
    from faultline.core.errors import DatabaseUnavailable as DatabaseUnavailable
    from faultline.core.errors import FaultlineError as FaultlineError
    from faultline.core.errors import FenceBroken as FenceBroken
    from faultline.core.errors import IllegalTransition as IllegalTransition
    from faultline.core.errors import JobCancelled as JobCancelled
    from faultline.core.errors import JobFailed as JobFailed
    from faultline.core.errors import JobNotFound as JobNotFound
    from faultline.core.errors import JobRejected as JobRejected
    from faultline.core.errors import KeyConflict as KeyConflict
    from faultline.core.errors import OutcomeUnknown as OutcomeUnknown
    from faultline.core.errors import PermissionDenied as PermissionDenied
    from faultline.core.errors import ResultTimeout as ResultTimeout
    from faultline.core.errors import SchemaError as SchemaError
    from faultline.core.errors import StaleLease as StaleLease
    from faultline.core.events import JsonLines as JsonLines
    from faultline.core.events import log_events as log_events
    from faultline.core.model import JobRecord as JobRecord
    from faultline.core.model import JobState as JobState
    from faultline.core.model import Submission as Submission

_HOME = {
    "core.errors": (
        "ConfigError DatabaseUnavailable FaultlineError FenceBroken IllegalTransition JobCancelled JobFailed JobNotFound "
        "JobRejected KeyConflict OutcomeUnknown PermissionDenied ResultTimeout SchemaError StaleLease"
    ),
    "core.events": "JsonLines log_events",
    "core.model": "JobRecord JobState Submission",
    "app.blocking_job": "BlockingJob",
    "app.application": "Faultline",
    "app.handle": "JobHandle",
    "app.job": "Job",
    "app.outcomes": "Cancel Retry Snooze",
    "app.tasks": "Task",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605 - the table above is the list


def __getattr__(name: str) -> object:
    """Import on first use: the command line and the keeper of an embedded server must start without the database driver."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'faultline' has no attribute {name!r}")
    return getattr(import_module(f"faultline.{_MODULE_OF[name]}"), name)
