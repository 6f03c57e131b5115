"""The guards below all verbs: time, durability, the tables' own rules; and what looks like a guard and is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline_proof.mutants.texts import Mutant

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

GUARDS: Guards = {
    "now": {
        "reads no setting": (
            "return statement_timestamp();",
            "return coalesce(nullif(current_setting('faultline.now', true), '')::timestamptz, statement_timestamp());",
        ),
        "goes on within a transaction": ("return statement_timestamp();", "return transaction_timestamp();"),
    },
    "clock": {
        "reads no setting": (
            "return clock_timestamp();",
            "return coalesce(nullif(current_setting('faultline.clock', true), '')::timestamptz, clock_timestamp());",
        ),
        "goes on within a statement": ("return clock_timestamp();", "return statement_timestamp();"),
    },
    "require_synchronous_commit": {
        "raises what is off": ("current_setting('synchronous_commit') = 'off'", "false"),
        "leaves other levels alone": ("current_setting('synchronous_commit') = 'off'", "true"),
        "is over with the transaction": ("'on', true)", "'on', false)"),
    },
    "guards.sql": {
        "calls never_rewritten: but why a program stops at a signal": (
            "    old.kind <> 'signal' or old.error is not null\n    or ",
            "    true or ",
        ),
        "calls never_rewritten: and that once": ("old.kind <> 'signal' or old.error is not null", "old.kind <> 'signal'"),
        "calls never_rewritten: and of a signal only": (
            "old.kind <> 'signal' or old.error is not null",
            "old.error is not null",
        ),
        "calls never_rewritten: and nothing else with it": "    or old.result is distinct from new.result\n",
        "starts_queued: in no other state": "new.state <> 'queued'\n  or ",
        "starts_queued: with no attempt": "  or new.attempt <> 0\n",
        "starts_queued: with no token": ("or (new.fencing_token <> 0 and ", "or (false and "),
        "token_grows: never back": "new.fencing_token < old.fencing_token\n  or ",
        "token_grows: with every claim": (
            "\n  or (old.state <> 'running' and new.state = 'running' and new.fencing_token = old.fencing_token)",
            "",
        ),
        "lease_keeps_its_holder: the owner": "old.lease_owner <> new.lease_owner or ",
        "lease_keeps_its_holder: the token": " or old.fencing_token <> new.fencing_token",
        "identity_stays: the id": "old.id <> new.id or ",
        "identity_stays: the task": "old.task <> new.task or ",
        "identity_stays: the time": " or old.created_at <> new.created_at",
        "identity_stays: whatever is set": ("update of id, task, created_at on", "update of state on"),
        "lease_keeps_its_holder: whatever is set": ("update of lease_owner, fencing_token on", "update of attempt on"),
        "token_grows: whatever is set": ("update of state, fencing_token on", "update of attempt on"),
        "legal_transition: from queued": (
            "and (old.state <> 'queued' or new.state = 'failed')",
            "and old.state <> 'queued'",
        ),
        "legal_transition: from what has ended": ("(old.state <> 'queued' or new.state = 'failed')", "new.state = 'failed'"),
        "legal_transition: but what runs ends": (
            "old.state <> 'running' and new.state <> 'queued'",
            "new.state <> 'queued'",
        ),
        "legal_transition: but all is queued again": (
            "old.state <> 'running' and new.state <> 'queued'",
            "old.state <> 'running'",
        ),
        "refuse_change: raises FL002": (
            "raise exception '% on faultline.%",
            "return new; raise exception '% on faultline.%",
        ),
    },
    "views.sql": {
        "jobs: shows what is done": ("from faultline.ledger f;", "from faultline.ledger f where false;"),
        "jobs: shows who holds it": ("j.lease_owner as owner", "null::text as owner"),
    },
}

#: A key on (job, token) looks like a fence and allows one entry for each attempt.
TABLES = [
    Mutant(
        "ledger: is keyed by the job, not by the attempt",
        ("table", "ledger"),
        "alter table faultline.ledger drop constraint ledger_pkey, add unique (job_id, fencing_token)",
    )
]

#: Found in the texts, but taking it out changes nothing that could be seen.
NO_GUARDS: dict[str, str] = {
    **dict.fromkeys(
        (
            f"{name}: plans for full tables"
            for name in (
                "lease_status",
                "can_resume",
                "open_child",
                "has_failed",
                "kept_signal",
                "nudge_waiters",
                "cancel_children_batch",
            )
        ),
        "its callers plan for full tables",
    ),
    "wake_for_free_permit: plans for full tables": "the verbs that end jobs plan for full tables, and it inherits that",
    **dict.fromkeys(
        ("recount_queue: plans for full tables", "is_miscounted: plans for full tables"), "it looks at every permit"
    ),
    **dict.fromkeys(
        ("run_schedule: commits to the disk", "backfill: commits to the disk"), "it enqueues jobs, and that does so, too"
    ),
    "tick_many: runs with the rights of its owner": "it only calls tick, which does",
    "reopen_flows: plans for full tables": "it looks up one row after the other",
    **dict.fromkeys(
        ("heartbeat: plans for full tables", "tally: plans for full tables"),
        "there is but one way to plan it",
    ),
    "unregister_worker: plans for full tables": "a list of workers is never long",
    **dict.fromkeys(
        ("reconcile: plans for full tables", "sample: plans for full tables"),
        "it looks at every job",
    ),
}
NO_GUARDS_BEFORE_18 = dict.fromkeys(
    ("recall: plans for full tables", "history: plans for full tables"), "a function in SQL kept no plans then"
)
