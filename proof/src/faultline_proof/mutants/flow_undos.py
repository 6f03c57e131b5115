"""The guards of undoing: of sagas that have failed, and of jobs that have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

GUARDS: Guards = {
    "undo": {
        "knows no jobs of other queues": ("(undo.only_queues is null or j.queue = any (undo.only_queues))", "true"),
        "hands its queues on": ("'undone', undo.only_queues", "'undone'"),
        "locks the job": ("= any (undo.only_queues))\n  for update;", "= any (undo.only_queues));"),
        "refuses a job that has not ended": ("elsif job.state in ('queued', 'running') then", "elsif false then"),
        "refuses a job of a flow that is being deleted": (
            "and not f.pruning for key share skip locked;",
            "for key share skip locked;",
        ),
        "locks the flow": ("and not f.pruning for key share skip locked;", "and not f.pruning;"),
        "waits for no flow": ("and not f.pruning for key share skip locked;", "and not f.pruning for key share;"),
        "refuses a job with nothing to undo": (
            "if not faultline.begin_undo(undo.job_id, signed) then",
            "if not faultline.begin_undo(undo.job_id, signed) and false then",
        ),
        "records who did it": ("signature(undo.by, ", "signature(null, "),
        "records why": ("undo.reason);", "null);"),
    },
    "begin_undo": {
        "leaves a saga alone that was left": (" and c.outcome is distinct from 'done'\n", "\n"),
        "fails the sagas of this job": (
            "where c.job_id = begin_undo.job_id and c.kind = 'saga' and c.ended_at is null;",
            "where c.kind = 'saga' and c.ended_at is null;",
        ),
        "fails sagas only": (
            "where c.job_id = begin_undo.job_id and c.kind = 'saga' and c.ended_at is null;",
            "where c.job_id = begin_undo.job_id and c.ended_at is null;",
        ),
        "ends a cancelled job as cancelled": (
            "when 'cancelled' then '{\"then\": \"cancel\"}'::jsonb",
            "when '' then '{}'::jsonb",
        ),
        "closes open children": ("  perform faultline.only_undo(begin_undo.job_id, more_attempts => false);\n", ""),
        "counts attempts from zero": ("      attempt = 0,\n", ""),
        "records who did it": (" || begin_undo.signed\n", "\n"),
    },
    "only_undo": {
        "gives further attempts": ("and only_undo.more_attempts;", "and false;"),
        "gives them once": ("and only_undo.more_attempts;", ";"),
        "closes the children of this job": (
            "where c.job_id = only_undo.job_id and c.kind = 'children' and c.ended_at is null",
            "where c.kind = 'children' and c.ended_at is null",
        ),
        "closes children only": (
            "where c.job_id = only_undo.job_id and c.kind = 'children' and c.ended_at is null",
            "where c.job_id = only_undo.job_id and c.ended_at is null",
        ),
        "has them cancelled": "    insert into faultline.sweeps (job_id, reason) values (only_undo.job_id, 'undo');\n",
    },
    "record": {
        "has a job whose saga failed only undo": ("  if fails_saga then\n    perform", "  if false then\n    perform"),
        "gives attempts for undos once": ("more_attempts => not undoes", "more_attempts => true"),
    },
    "cancel": {
        "undoes also what was cancelled before": ("elsif job.state = 'cancelled' and cancel.undo", "elsif false"),
        "undoes only if asked": ("if cancel.undo and job.flow_id", "if job.flow_id"),
        "undoes if asked": ("if cancel.undo and job.flow_id", "if false and job.flow_id"),
        "has children undone too": ("case when cancel.undo then 'undo' end", "null"),
    },
    "sweep": {
        "undoes only what nobody goes on with": ("swept.reason is not null", "true"),
    },
    "cancel_children_batch": {
        "undoes what children have begun": ("  if cancel_children_batch.undo then\n", "  if false then\n"),
    },
    "cancel_children": {
        "leaves a child alone that undoes": ("c.kind = 'saga' and c.outcome = 'failed'\n", "false\n"),
        "hands it on to children of children": ("case when cancel_children.undo then 'undo' end", "null"),
    },
    "stopped_at": {
        "calls nothing again that is undone": ("s.kind = 'saga' and s.outcome = 'failed'", "false"),
    },
}
