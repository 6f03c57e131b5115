"""The guards of what operators and upkeep do to flows: retry, prune, reconcile."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

GUARDS: Guards = {
    "retry": {
        "refuses a child whose parent has gone on": ("if refused.reason is not null then", "if false then"),
        "comes after another retry in its flow": ("where f.id = flow for no key update;", "where f.id = flow;"),
        "needs a new view": ("    perform faultline.read_committed('retry of a job of a flow');\n", ""),
        "says that it can be sent again": ("case when refused.is_busy then '55P03' else 'FL002' end", "'FL002'"),
    },
    "retry_failed": {
        "locks the flows": ("    order by f.id\n    for no key update skip locked\n", "    order by f.id\n"),
        "waits for no flow": ("    for no key update skip locked\n", "    for no key update\n"),
        "locks no job of another flow": (" and (j.flow_id is null or j.flow_id = any (flows))", ""),
        "needs a new view": ("    perform faultline.read_committed('retry of a job of a flow');\n", "    null;\n"),
    },
    "retry_job_of_flow": {
        "goes on behind one that is busy": (" or lock_not_available then", " then"),
    },
    "why_not_retried": {
        "refuses a job of a flow that is being deleted": ("= child.flow_id and f.pruning) then", "is null) then"),
        "locks the call": ("where c.id = child.call_id for share skip locked;", "where c.id = child.call_id;"),
        "waits for no parent": (
            "where c.id = child.call_id for share skip locked;",
            "where c.id = child.call_id for share;",
        ),
        "refuses a child of a parent that succeeded": ("when not found then", "when false then"),
        "refuses a child of a parent that ended badly": (
            "when parent.state in ('failed', 'cancelled') then",
            "when false then",
        ),
        "refuses a child past which its parent has gone": ("when call.ended_at is not null then", "when false then"),
    },
    "requeue_ended_jobs": {
        "starts the rest of the flow over too": ("    ids := faultline.reopen_flows(ids);\n", ""),
        "has a job of a graph wait again": ("when e.id = any (waiting) then '9999-01-01Z'", "when false then '9999-01-01Z'"),
        "marks a job of a graph as waiting": (
            "suspended = case when e.id = any (waiting) then true end",
            "suspended = null",
        ),
        "awaits what a job of a graph comes after": (
            "update faultline.calls c set awaited = c.kind = 'after' where c.job_id = any (waiting) and c.ended_at is null;",
            "null;",
        ),
        "nudges a job of a graph": (
            "insert into faultline.nudges (job_id, kind) select w.id, 1 from unnest(waiting) as w (id);",
            "null;",
        ),
    },
    "reopen_flows": {
        "opens the calls at which the program stopped": ("        perform faultline.open_again(job);\n", "        null;\n"),
        "leaves the children of calls alone that are history": (" and c.ended_at is null and l.id", " and l.id"),
        "starts only its own children over": ("where k.call_id = c.id and", "where"),
        "starts what comes after over": ("where j.id = any (found || found_behind)", "where j.id = any (found)"),
        "locks the rows": ("      order by j.id\n      for update\n", "      order by j.id\n"),
        "looks again after the lock": ("      where j.state in ('failed', 'cancelled')\n", ""),
        "leaves the children of forgotten calls as they are": (
            "where a.id not in (select l.id from left_behind l)",
            "where true",
        ),
        "leaves what is below them as it is": ("      where e.job_id = any (all_ids)\n    )", "      where false\n    )"),
    },
    "open_again": {
        "opens the call at which the program stopped": (
            "  where c.id = any (begun);\n  perform",
            "  where false;\n  perform",
        ),
        "drops the signal at which the program stopped": (
            "set received_by = c.fencing_token || '/' || c.number",
            "set received_by = s.received_by",
        ),
        "drops the signal of that call only": (" and s.received_by = c.number;", " and s.received_by is not null;"),
        "drops the signal of that job only": (" and s.job_id = c.job_id and", " and"),
        "gives a signal a new time": (
            "until = case when c.kind <> 'signal' or c.outcome = 'closed' then c.until end",
            "until = c.until",
        ),
    },
    "forget_calls": {
        "frees the numbers": ("  delete from faultline.calls c where c.id = any (call_ids) and c.kind <> 'children';\n", ""),
    },
    "forget_doubtful": {
        "forgets only what is doubtful": ("      and c.doubtful\n", ""),
    },
    "forget_upstream": {
        "looks again": ("set ended_at = null, outcome = null, result = null,", "set"),
    },
    "closed_with": {
        "finds what was closed with a failure": ("c.outcome = 'closed' and c.number !~", "false and c.number !~"),
    },
    "undone_saga": {
        "finds a saga that was undone": ("and c.kind = 'saga' and", "and false and"),
    },
    "refuse_reopening": {
        "refuses a child whose saga was undone": ("  if saga is null and not (\n", "  if true or not (\n"),
        "refuses a child that is being undone": ("  if saga is null and not (\n", "  if saga is null or not (\n"),
        "lets a child run that undoes nothing": (" and c.kind = 'saga' and c.outcome = 'failed'", ""),
        "lets a child start over whose undo failed": ("in ('queued', 'running')\n    and", "is not null\n    and"),
    },
    "refuse_behind": {
        "refuses what cannot run again": ("and f.args is null) then", "and false) then"),
        "refuses while it runs": ("elsif job.state in ('queued', 'running') and not", "elsif false and not"),
    },
    "stand_in": {
        "makes a new job": ("if cardinality(olds) = 0 then", "if true then"),
        "makes one, however often what it comes after is retried": ("c.number = '0'\n      where e.job_id = o.id", "true"),
    },
    "stopped_at": {
        "opens only what failed": (" and c.outcome = 'failed'", ""),
        "opens a signal at which it stopped": ("then c.ended_at is not null and c.error is not null", "then false"),
        "opens no signal that was read": (" and c.error is not null", ""),
        "leaves a failure alone past which the program went on": ("and d.id > c.ended_moment", "and false"),
        "looks at calls of the same branch": (
            "            and starts_with(c.number, regexp_replace(d.number, '[0-9]+$', ''))\n",
            "",
        ),
        "opens what the job failed by": ("coalesce(c.number = any (named), false)", "false"),
    },
    "cancel_waiting": {
        "is recorded in the journal": (
            "values (faultline.clock(), job.id, 'cancelled', job.fencing_token, ",
            "select v.* from (values (faultline.clock(), job.id, 'cancelled', job.fencing_token, ",
            ("|| why);", "|| why)) v where false;"),
        ),
        "has its children swept": ("perform faultline.end_badly(array[job.id]);", "null;"),
        "clears the mark of waiting": "      suspended = null,\n",
    },
    "cancel_deadlocked_jobs": {
        "cancels only circles": ("where k.first = k.last\n", "where true\n"),
        "cancels the youngest only": ("and k.last > c.id", "and false"),
        "leaves those alone that wait for something else": ("and c.kind not in ('children', 'watch', 'after')", "and false"),
        "leaves those alone whose time is nearly up": (
            "        and j.next_run_at > faultline.clock() + interval '1 hour'\n",
            "",
        ),
        "looks again after the lock": (
            "where j.id = job.id and j.state = 'queued' and j.suspended for update skip locked;",
            "where j.id = job.id and j.state = 'queued' and j.suspended;",
        ),
    },
    "wake_overdue_suspended": {
        "nudges only those who can go on": ("      else false\n    end\n", "      else true\n    end\n"),
        "knows that a signal is there": (
            "then faultline.kept_signal(c.job_id, c.name, c.number, c.fresh, c.begun_at) is not null",
            "then false",
        ),
        "knows which call a signal is for": (
            "then faultline.kept_signal(c.job_id, c.name, c.number, c.fresh, c.begun_at) is not null",
            "then true",
        ),
        "knows that all have ended": ("faultline.open_child(c.id, 2147483647) is null", "false"),
        "nudges nobody twice": "    and c.job_id not in (select n.job_id from faultline.nudges n)\n",
        "takes no more than it was asked for": ("  limit wake_overdue_suspended.max_jobs", ""),
    },
    "reconcile": {
        "nudges those who have overslept": ("perform faultline.wake_overdue_suspended(reconcile.max_jobs);", "null;"),
        "breaks circles": ("perform faultline.cancel_deadlocked_jobs();", "null;"),
    },
    "prune_flows": {
        "forgets only what is old enough": ("where f.live_at < horizon\n", "where true\n"),
        "passes over locked rows": (
            "    order by f.live_at\n    limit prune_flows.max_rows\n    for update skip locked\n",
            "    order by f.live_at\n    limit prune_flows.max_rows\n    for update\n",
        ),
        "looks at no more than it was asked to": (
            "    order by f.live_at\n    limit prune_flows.max_rows\n    for update skip locked\n",
            "    order by f.live_at\n    for update skip locked\n",
        ),
        "keeps a flow while one of its jobs is open": (
            "case when faultline.is_live(flow.id) then",
            "case when false then",
        ),
        "goes by the end of the first job": ("      continue when ended_at >= horizon;\n", ""),
        "keeps what ended badly as long as failed jobs": (
            "greatest(s.keep_failed_seconds - s.keep_flows_seconds, 0)",
            "0",
        ),
        "takes no more than it was asked for": (
            "faultline.prune_flow(flow.id, prune_flows.max_rows - gone)",
            "faultline.prune_flow(flow.id, 1000000)",
        ),
        "says how many are gone": ("gone := gone + part.gone;", "gone := gone + 1;"),
        "remembers the highest token": ("highest := greatest(highest, part.highest);", "null;"),
    },
    "is_live": {
        "looks at the children of children": ("where c.job_id = m.id and", "where c.job_id = is_live.flow_id and"),
        "looks at jobs of this flow only": (" and o.flow_id = is_live.flow_id", ""),
        "takes queued and running jobs for open": ("o.state in ('queued', 'running')", "o.state = 'running'"),
    },
    "prune_flow": {
        "takes no more than it was asked for": ("if gone >= prune_flow.max_jobs then", "if false then"),
        "leaves jobs of others alone": (
            "filter (where b.is_leaf and b.is_member) as ids",
            "filter (where b.is_leaf) as ids",
        ),
        "forgets the deepest first": (
            "(array_agg(b.job_id) filter (where not b.is_leaf))[1] as next_parent",
            "null::uuid as next_parent",
        ),
        "forgets the flow": ("delete from faultline.flows f where f.id = parent;", "null;"),
    },
    "forget_jobs": {
        **{
            f"forgets the {table}": (
                f"delete from faultline.{table} {table[0]} where",
                f"delete from faultline.{table} {table[0]} where false and",
            )
            for table in ("signals", "streams", "steps", "sweeps", "calls")
        },
        "returns the highest token": ("(select max(e.fencing_token) from ended e)", "0"),
    },
}
