"""All that the database holds about its jobs, to check a run when it is over.

Read from the tables, not through the views and verbs that are being checked. Times are seconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass

from faultline.core.journal import JournalEvent
from faultline.store.rows import RowOf, value
from faultline.store.statement import Statement


@dataclass(frozen=True, slots=True)
class JobHeld:
    """One row of a job. `state` is `succeeded` for a row of the ledger."""

    job_id: str
    state: str
    task: str
    token: int
    owner: str | None
    attempt: int
    max_attempts: int
    created_at: float
    due_at: float | None
    finished_at: float | None
    key: str | None = None
    #: The job at the root of its flow.
    flow_id: str | None = None
    suspended: bool = False
    queue: str = "default"
    group: str | None = None
    #: Of its queue while it runs, and of its group.
    has_permit: bool = False


@dataclass(frozen=True, slots=True)
class PermitHeld:
    """How many permits a queue, or one of its groups, has given out by its own account."""

    queue: str
    #: Empty: the queue's own.
    group: str
    holding: int


@dataclass(frozen=True, slots=True)
class BudgetHeld:
    name: str
    #: What was in it when it was last looked at. None: it was never taken from.
    tokens: float | None


@dataclass(frozen=True, slots=True)
class TickHeld:
    """A moment of a schedule that was decided, or a run of moments that were missed."""

    schedule: str
    at: float
    #: The last moment of a run.
    until: float | None
    outcome: str
    job_id: str | None
    #: A person has asked for it: it is no moment of the rule.
    by_hand: bool = False
    decided_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of state in the journal, which does not record claim, release, suspend and complete."""

    job_id: str
    event: str
    #: The state before, and its token.
    was: str
    token_was: int
    state: str
    token: int
    #: The stored error of a failed attempt.
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepHeld:
    job_id: str
    name: str
    token: int


@dataclass(frozen=True, slots=True)
class CallHeld:
    """A call of a flow: a step, or something that its program waited for."""

    call_id: int
    job_id: str
    number: str
    kind: str
    name: str
    awaited: bool
    begun_at: float
    #: When it is over at the latest; None: never.
    until: float | None
    #: How many children it is to have.
    total: int | None
    #: Whether it is over when the first of its children has failed.
    fast: bool
    #: Of a signal: only what was sent after `begun_at` counts.
    fresh: bool
    outcome: str | None


@dataclass(frozen=True, slots=True)
class EdgeHeld:
    """A call waits for this job."""

    call_id: int
    index: int
    job_id: str


@dataclass(frozen=True, slots=True)
class SignalHeld:
    id: int
    job_id: str
    name: str
    key: str | None
    for_call: str | None
    sent_at: float
    sent_by: str | None
    #: The number of the call that received it.
    received_by: str | None


def _seconds(column: str) -> str:
    return f"extract(epoch from {column})::float8"


_TOKEN = "fencing_token"  # noqa: S105 - a column, no secret
_TIMES = {"created_at": _seconds("created_at"), "finished_at": _seconds("finished_at")}
_OPEN = RowOf(
    JobHeld,
    job_id="id::text",
    token=_TOKEN,
    owner="lease_owner",
    # Of a job that waits in its group, `next_run_at` is not the time.
    due_at=_seconds("coalesce(group_at, next_run_at)"),
    key="idempotency_key",
    flow_id="flow_id::text",
    suspended="coalesce(suspended, false)",
    group="group_key",
    has_permit="coalesce(has_permit, false)",
    **_TIMES,
)
_DONE = RowOf(
    JobHeld,
    job_id="job_id::text",
    state="'succeeded'",
    token=_TOKEN,
    due_at="null",
    key="idempotency_key",
    flow_id="flow_id::text",
    suspended="false",
    group="group_key",
    has_permit="false",
    **_TIMES,
)
_TRANSITION = RowOf(
    Transition,
    job_id="job_id::text",
    # The end of an attempt has no state before: the job was running.
    was="coalesce(detail ->> 'was', 'running')",
    token_was=f"coalesce((detail ->> 'token_was')::bigint, {_TOKEN})",
    state="case event "
    + " ".join(f"when '{event}' then '{event.kind.state}'" for event in JournalEvent if event.kind.state)
    + f" when '{JournalEvent.RECOVERED}' then case detail ->> 'was' when 'running' then 'queued' else detail ->> 'was' end"
    " else detail ->> 'state' end",
    token=_TOKEN,
    error="detail ->> 'error'",
)
_STEP = RowOf(StepHeld, job_id="job_id::text", token=_TOKEN)
_CALL = RowOf(
    CallHeld,
    call_id="id",
    job_id="job_id::text",
    begun_at=_seconds("begun_at"),
    until=f"case when until < '9999-01-01Z' then {_seconds('until')} end",
    fast="coalesce(policy in ('fast', 'cancel'), false)",
    fresh="coalesce(fresh, false)",
)
_EDGE = RowOf(EdgeHeld, job_id="job_id::text")
_PERMIT = RowOf(PermitHeld)
_BUDGET = RowOf(BudgetHeld)
_TICK = RowOf(
    TickHeld,
    schedule="s.name",
    at=_seconds("t.at"),
    until=_seconds("t.last_at"),
    outcome="t.outcome",
    job_id="t.job_id::text",
    by_hand="t.kind = 'manual' or t.outcome = 'backfilled'",
    decided_at=_seconds("t.decided_at"),
)
_SIGNAL = RowOf(SignalHeld, job_id="job_id::text", sent_at=_seconds("sent_at"))
#: What changes the state of a job. Claim, release, suspend and complete leave no entry.
_CHANGES = (
    "attempt_failed", "lease_reaped", "cancelled", "retried", "recovered", "reconciled", "expired", "superseded",
)  # fmt: skip


def jobs() -> Statement[list[JobHeld]]:
    """Every row of every job: a job in two tables is seen twice."""
    return Statement(
        name="all_jobs",
        sql=f"select {_OPEN.columns} from faultline.open_jobs union all select {_DONE.columns} from faultline.ledger",
        params=(),
        read=_OPEN.many,
        repeatable=True,
    )


def transitions() -> Statement[list[Transition]]:
    """The changes of state in the journal, in order for each job: a verb writes an entry under a lock on the job's row."""
    return Statement(
        name="transitions",
        sql=f"select {_TRANSITION.columns} from faultline.journal where job_id is not null and event = any (%s) order by id",
        params=(list(_CHANGES),),
        read=_TRANSITION.many,
        repeatable=True,
    )


def steps() -> Statement[list[StepHeld]]:
    return Statement(
        name="all_steps",
        sql=f"select {_STEP.columns} from faultline.steps",
        params=(),
        read=_STEP.many,
        repeatable=True,
    )


def calls() -> Statement[list[CallHeld]]:
    return Statement("all_calls", f"select {_CALL.columns} from faultline.calls", (), _CALL.many, repeatable=True)


def edges() -> Statement[list[EdgeHeld]]:
    return Statement("all_edges", f"select {_EDGE.columns} from faultline.edges", (), _EDGE.many, repeatable=True)


def signals() -> Statement[list[SignalHeld]]:
    return Statement("all_signals", f"select {_SIGNAL.columns} from faultline.signals", (), _SIGNAL.many, repeatable=True)


def permits() -> Statement[list[PermitHeld]]:
    """What was given out, less what was given back in events that are not applied yet."""
    return Statement(
        "all_permits",
        'select queue, "group", sum(holding)::int as holding from ('
        " select queue, '' as \"group\", holding from faultline.limited_queues"
        " union all select queue, '', -freed from faultline.group_events"
        " union all select queue, group_key, holding from faultline.groups"
        " union all select queue, p.group_key, -p.freed_group from faultline.group_events,"
        " unnest(group_keys, freed_groups) as p (group_key, freed_group) where p.freed_group is not null"
        ') as given group by queue, "group"',
        (),
        _PERMIT.many,
        repeatable=True,
    )


def budgets() -> Statement[list[BudgetHeld]]:
    return Statement("all_budgets", f"select {_BUDGET.columns} from faultline.budgets", (), _BUDGET.many, repeatable=True)


def ticks() -> Statement[list[TickHeld]]:
    sql = f"select {_TICK.columns} from faultline.ticks t join faultline.schedules s on s.id = t.schedule_id"
    return Statement("all_ticks", sql, (), _TICK.many, repeatable=True)


def time() -> Statement[float]:
    """The database's time in seconds since 1970."""
    return Statement("time", "select extract(epoch from faultline.clock())::float8", (), value, repeatable=True)
