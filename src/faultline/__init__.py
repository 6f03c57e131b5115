"""Background jobs on PostgreSQL that stay correct when things go wrong."""

from importlib import import_module

# For type checkers, which know the name. Importing it from `typing` would take longer than all the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from faultline.app.application import Faultline as Faultline
    from faultline.app.batch_tasks import BatchDecorator as BatchDecorator
    from faultline.app.blocking_job import BlockingJob as BlockingJob
    from faultline.app.decorators import TaskDecorator as TaskDecorator
    from faultline.app.enqueue_in_session import JoinedApp as JoinedApp
    from faultline.app.enqueue_in_session import JoinedTask as JoinedTask
    from faultline.app.graphs import Flow as Flow
    from faultline.app.graphs import FlowHandle as FlowHandle
    from faultline.app.graphs import FlowJob as FlowJob
    from faultline.app.handle import JobHandle as JobHandle
    from faultline.app.job import Job as Job
    from faultline.app.limits import Limits as Limits
    from faultline.app.migrate import migrate as migrate
    from faultline.app.processes import Processes as Processes
    from faultline.app.queues import QueueResource as QueueResource
    from faultline.app.schedules import ScheduleOptions as ScheduleOptions
    from faultline.app.schedules import Schedules as Schedules
    from faultline.app.tasks import Task as Task
    from faultline.attempt.async_transaction import Transaction as Transaction
    from faultline.attempt.attempt import Attempt as Attempt
    from faultline.attempt.backoff import Backoff as Backoff
    from faultline.attempt.blocking_transaction import BlockingTransaction as BlockingTransaction
    from faultline.attempt.current import current_job as current_job
    from faultline.attempt.options import Duration as Duration
    from faultline.attempt.options import TaskOptions as TaskOptions
    from faultline.attempt.outcomes import Cancel as Cancel
    from faultline.attempt.outcomes import ContinueAsNew as ContinueAsNew
    from faultline.attempt.outcomes import Fail as Fail
    from faultline.attempt.outcomes import Retry as Retry
    from faultline.attempt.outcomes import Snooze as Snooze
    from faultline.attempt.streams import Restarted as Restarted
    from faultline.attempt.streams import Stream as Stream
    from faultline.attempt.streams import StreamReader as StreamReader
    from faultline.attempt.transaction import JoinedTransaction as JoinedTransaction
    from faultline.attempt.uniqueness import Unique as Unique
    from faultline.core.errors import BudgetNotFound as BudgetNotFound
    from faultline.core.errors import ChildFailed as ChildFailed
    from faultline.core.errors import ConfigError as ConfigError
    from faultline.core.errors import CostTooHigh as CostTooHigh
    from faultline.core.errors import DatabaseBusy as DatabaseBusy
    from faultline.core.errors import DatabaseUnavailable as DatabaseUnavailable
    from faultline.core.errors import EmbeddedError as EmbeddedError
    from faultline.core.errors import FaultlineError as FaultlineError
    from faultline.core.errors import FenceBroken as FenceBroken
    from faultline.core.errors import FlowTooLong as FlowTooLong
    from faultline.core.errors import IllegalTransition as IllegalTransition
    from faultline.core.errors import JobCancelled as JobCancelled
    from faultline.core.errors import JobFailed as JobFailed
    from faultline.core.errors import JobNotFound as JobNotFound
    from faultline.core.errors import JobRejected as JobRejected
    from faultline.core.errors import KeyConflict as KeyConflict
    from faultline.core.errors import LimitReached as LimitReached
    from faultline.core.errors import MigrationBlocked as MigrationBlocked
    from faultline.core.errors import OutcomeUnknown as OutcomeUnknown
    from faultline.core.errors import PermissionDenied as PermissionDenied
    from faultline.core.errors import PostgresNotFound as PostgresNotFound
    from faultline.core.errors import RecoverBlocked as RecoverBlocked
    from faultline.core.errors import ResultRejected as ResultRejected
    from faultline.core.errors import ResultTimeout as ResultTimeout
    from faultline.core.errors import ScheduleNotFound as ScheduleNotFound
    from faultline.core.errors import SchemaAhead as SchemaAhead
    from faultline.core.errors import SchemaAltered as SchemaAltered
    from faultline.core.errors import SchemaBehind as SchemaBehind
    from faultline.core.errors import SchemaError as SchemaError
    from faultline.core.errors import SchemaMissing as SchemaMissing
    from faultline.core.errors import SetupError as SetupError
    from faultline.core.errors import SignalTimeout as SignalTimeout
    from faultline.core.errors import StaleLease as StaleLease
    from faultline.core.errors import StatementTimeout as StatementTimeout
    from faultline.core.errors import StepFailed as StepFailed
    from faultline.core.errors import UnreadableJson as UnreadableJson
    from faultline.core.events import JsonLines as JsonLines
    from faultline.core.events import TextLines as TextLines
    from faultline.core.events import log_events as log_events
    from faultline.core.limits import BudgetRecord as BudgetRecord
    from faultline.core.limits import Limit as Limit
    from faultline.core.limits import LimitFields as LimitFields
    from faultline.core.limits import LimitRecord as LimitRecord
    from faultline.core.limits import Rate as Rate
    from faultline.core.model import JobRecord as JobRecord
    from faultline.core.model import JobState as JobState
    from faultline.core.model import JobSummary as JobSummary
    from faultline.core.model import Json as Json
    from faultline.core.model import Retention as Retention
    from faultline.core.model import Submission as Submission
    from faultline.core.running import JobFilter as JobFilter
    from faultline.core.settings import WorkerOptions as WorkerOptions
    from faultline.flow.blocking.deferred_calls import DeferredCalls as DeferredCalls
    from faultline.flow.blocking.sagas import BlockingSaga as BlockingSaga
    from faultline.flow.sagas import Saga as Saga
    from faultline.flow.step_functions import Retries as Retries
    from faultline.flow.step_functions import Step as Step
    from faultline.flow.step_functions import StepDecorator as StepDecorator
    from faultline.flow.task_protocol import CallableTask as CallableTask
    from faultline.flow.task_protocol import OneArgumentTask as OneArgumentTask
    from faultline.history.calls import BlockingCall as BlockingCall
    from faultline.history.calls import Call as Call
    from faultline.history.calls import Won as Won
    from faultline.store.reads.schedules import ScheduleLine as ScheduleLine
    from faultline.store.reads.schedules import TickLine as TickLine
    from faultline.store.verbs.graphs import Upstream as Upstream
    from faultline.worker.worker import Worker as Worker

_HOME = {
    "app.application": "Faultline",
    "flow.sagas": "Saga",
    "attempt.async_transaction": "Transaction",
    "attempt.attempt": "Attempt",
    "app.batch_tasks": "BatchDecorator",
    "app.blocking_job": "BlockingJob",
    "flow.blocking.sagas": "BlockingSaga",
    "attempt.blocking_transaction": "BlockingTransaction",
    "flow.task_protocol": "CallableTask OneArgumentTask",
    "attempt.current": "current_job",
    "app.decorators": "TaskDecorator",
    "app.graphs": "Flow FlowHandle FlowJob",
    "app.handle": "JobHandle",
    "app.job": "Job",
    "app.enqueue_in_session": "JoinedApp JoinedTask",
    "flow.blocking.deferred_calls": "DeferredCalls",
    "app.limits": "Limits",
    "app.migrate": "migrate",
    "attempt.options": "Duration TaskOptions",
    "attempt.outcomes": "ContinueAsNew Cancel Fail Retry Snooze",
    "app.processes": "Processes",
    "app.queues": "QueueResource",
    "attempt.backoff": "Backoff",
    "app.schedules": "ScheduleOptions Schedules",
    "flow.step_functions": "Retries Step StepDecorator",
    "attempt.streams": "Restarted Stream StreamReader",
    "app.tasks": "Task",
    "attempt.transaction": "JoinedTransaction",
    "attempt.uniqueness": "Unique",
    "core.errors": (
        "BudgetNotFound ChildFailed ConfigError CostTooHigh DatabaseBusy DatabaseUnavailable EmbeddedError FaultlineError "
        "FenceBroken FlowTooLong IllegalTransition JobCancelled JobFailed JobNotFound JobRejected KeyConflict "
        "LimitReached MigrationBlocked OutcomeUnknown PermissionDenied PostgresNotFound "
        "RecoverBlocked ResultRejected ResultTimeout SchemaAhead SchemaAltered SchemaBehind "
        "SchemaError SchemaMissing ScheduleNotFound SignalTimeout StaleLease StatementTimeout StepFailed SetupError "
        "UnreadableJson"
    ),
    "core.events": "JsonLines TextLines log_events",
    "core.limits": "BudgetRecord Limit LimitFields LimitRecord Rate",
    "core.model": "JobRecord JobState JobSummary Json Retention Submission",
    "core.running": "JobFilter",
    "core.settings": "WorkerOptions",
    "history.calls": "BlockingCall Call Won",
    "store.reads.schedules": "ScheduleLine TickLine",
    "store.verbs.graphs": "Upstream",
    "worker.worker": "Worker",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605 - the table above is the list


def __dir__() -> list[str]:
    """What completion and `dir(faultline)` show: the public names."""
    return __all__


def __getattr__(name: str) -> object:
    """Import on first use: the command line and the keeper of an embedded server must start without the database driver."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'faultline' has no attribute {name!r}")
    return getattr(import_module(f"faultline.{_MODULE_OF[name]}"), name)
