"""The guards of waiting: who gives a lease back, who wakes it, and who ends the children of a job that ended badly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline_proof.mutants.leases import BATCH

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

GUARDS: Guards = {
    "suspend": {
        **BATCH,
        "looks only in READ COMMITTED": ("perform faultline.read_committed('suspend');", "null;"),
        "looks whether it is over already": (
            "k.has_ended or (select l.over or l.failed from faultline.can_resume(i.id, true) l)\n",
            "k.has_ended\n",
        ),
        "asks again if a budget was raised": (
            "coalesce(i.id = any (takers), false) and faultline.budget_raised_since_asked(i.id)",
            "false",
        ),
        "looks for failures too": ("faultline.can_resume(i.id, true)", "faultline.can_resume(i.id, false)"),
        "does not wait for what has ended": (
            "coalesce(bool_or(c.ended_at is not null), true) as has_ended",
            "false as has_ended",
        ),
        "does not take a wait for a budget for progress": (
            " and c.number <> '0.0.0'), false) as is_new",
            "), false) as is_new",
        ),
        "waits until the first of the times": ("min(c.until) as until", "max(c.until) as until"),
        "clears the owner": "          lease_owner = null,\n",
        "clears the expiry": "          lease_expires_at = null,\n",
        "gives the attempt back": ("else j.attempt - 1 end::smallint", "else j.attempt end::smallint"),
        "counts the attempts from zero at a new wait": (
            "attempt = case when l.is_new then 0 else",
            "attempt = case when false then 0 else",
        ),
        "counts them on at a known one": (
            "coalesce(bool_or(c.fencing_token = suspend.tokens[i.position] and c.number <> '0.0.0'), false) as is_new",
            "true as is_new",
        ),
        "counts the reaps from zero at a new wait": ("case when l.is_new then 0 else j.reaps end", "j.reaps"),
        "is due at once when it is over": (
            "when l.is_over then faultline.clock() else",
            "when false then faultline.clock() else",
        ),
        "is not due before it is over": ("coalesce(l.until, '9999-01-01Z')", "faultline.clock()"),
        "is marked as waiting": ("suspended = case when l.is_over then null else true end", "suspended = null"),
        "makes the job a member of a flow": ("flow_id = coalesce(j.flow_id, j.id)", "flow_id = j.flow_id"),
        "knows the flow's root": (
            "select r.id, at from unnest(roots) as r (id) on conflict do nothing;",
            "select r.id, at from unnest(roots) as r (id) where false;",
        ),
        "wakes workers for what is due": ("perform faultline.wake_for(due);", "null;"),
    },
    "can_resume": {
        "looks at awaited calls only": " and c.awaited",
        "looks at calls that have not ended": " and c.ended_at is null",
        "knows that the time is up": ("coalesce(call.until <= faultline.clock(), false)", "false"),
        "looks at all that were open before": (
            "faultline.open_child(call.id, coalesce(call.open_index, last))",
            "faultline.open_child(call.id, coalesce(call.open_index, 0))",
        ),
        "looks again for those that were retried": (
            "found_index := faultline.open_child(call.id, last, call.open_index);",
            "null;",
        ),
        "remembers where it was": (
            "update faultline.calls c set open_index = found_index where c.id = call.id;",
            "null;",
        ),
        "waits until all are enqueued": (" and call.spawned >= coalesce(call.total, 0)", ""),
        "looks for failures when one has failed": ("(can_resume.failures or is_over)", "is_over"),
        "does not look for failures otherwise": ("(can_resume.failures or is_over)", "true"),
        "wakes early only who wants to": ("call.policy in ('fast', 'cancel') and", ""),
        "cancels only who comes after": ("failed := failed or call.policy = 'cancel';", "failed := true;"),
        "cancels who comes after": ("failed := failed or call.policy = 'cancel';", "failed := false;"),
        "looks for signals": (
            "call.name, call.number, call.fresh, call.begun_at) is not null",
            "null, call.number, false, null) is not null",
        ),
        "waits for all that are awaited together": (
            "all_over := is_over and coalesce(all_over, true);",
            "all_over := is_over or coalesce(all_over, false);",
        ),
        "goes on when one is over": ("      over := over or is_over;\n", "      over := is_over and over;\n"),
    },
    "open_child": {
        "takes queued and running jobs for open": ("o.state in ('queued', 'running')", "o.state = 'running'"),
        "takes ended jobs for ended": ("      and o.state in ('queued', 'running')\n", ""),
        "looks at this call": "e.call_id = open_child.call_id\n      and ",
        "looks no higher than asked": "      and e.index <= open_child.from_index\n",
        "looks no lower than asked": "      and e.index > open_child.above\n",
        "begins with the last": ("order by e.index desc", "order by e.index"),
    },
    "has_failed": {
        "looks at this call": "e.call_id = has_failed.call_id and ",
        "knows the failed": ("in ('failed', 'cancelled')", "in ('cancelled')"),
        "knows the cancelled": ("in ('failed', 'cancelled')", "in ('failed')"),
    },
    "nudge_waiters": {
        "nudges the parent": ("unnest(nudge_waiters.call_ids)", "unnest(array[]::bigint[])"),
        "nudges those who watch": (
            "from unnest(nudge_waiters.watched) as w (job_id)",
            "from unnest(array[]::uuid[]) as w (job_id)",
        ),
        "says that one has failed": ("nudge_waiters.failed::integer", "0"),
        "nudges each once": ("select distinct c.job_id", "select c.job_id"),
    },
    "read_committed": {
        "refuses another isolation level": ("current_setting('transaction_isolation') <> 'read committed'", "false"),
    },
    "join_flow": {
        "leaves a child in its parent's flow": " and j.flow_id is null",
        "knows the flow's root": (
            "values (join_flow.job_id, faultline.clock()) on conflict do nothing;",
            "select join_flow.job_id, faultline.clock() where false;",
        ),
    },
    "resolve": {
        "looks only in READ COMMITTED": ("perform faultline.read_committed('resolve');", "null;"),
        "comes back to locked nudges": (
            "array(select c.id from unnest(nudges.chosen) as c (id) except select l.id from unnest(looked) as l (id))",
            "'{}'",
        ),
        "deletes what it looked at": ("delete from faultline.nudges n where n.id = any (looked);", "null;"),
        "wakes workers": ("perform faultline.wake_for(applied.to_wake);", "null;"),
        "begins anew rather than carry too much": ("when cardinality(kept) <= 10000 then", "when true then"),
    },
    # That it goes no further than it has seen, only a commit between two statements of one call would show.
    "read_nudges": {
        "believes no cursor of another run": ("read_nudges.cursor ->> 'run' = run and ", ""),
        "believes no cursor of the future": (" and (read_nudges.cursor ->> 'xmax')::xid8 <= pg_snapshot_xmax(seen)", ""),
        "finds what was committed late": ("where n.xid = any (under_way) and n.id <> all (kept)", "where false"),
        "finds what was new": ("n.xid >= lower_bound and n.id <> all (kept)", "false"),
        "begins where it was": ("where n.xid >= lower_bound and", "where"),
        "comes back to what it left": (
            "from faultline.nudges n where n.id = any (kept)\n",
            "from faultline.nudges n where false\n",
        ),
        "remembers the transactions under way": (
            "|| array(select x.xid from pg_snapshot_xip(seen) as x (xid) where x.xid < upper_bound);",
            ";",
        ),
        "keeps those that it has not looked through": ("case when batch.more_late then under_way else '{}' end", "'{}'"),
        "looks at no more than it was asked for": (
            "    order by n.xid, n.id\n    limit most\n",
            "    order by n.xid, n.id\n",
        ),
        "leaves paused nudges alone": (
            "filter (where t.not_before is null or t.not_before <= at) as due",
            "filter (where true) as due",
        ),
        "remembers paused nudges": ("kept := coalesce(batch.paused, '{}') ||", "kept := '{}' ||"),
        "asks again while there is more": ("+ (batch.more_late or batch.last_xid is not null)::integer", ""),
    },
    # Nor could anything else show that it looks at the state again after the lock.
    "apply_nudges": {
        "passes over locked nudges": (
            "where n.id = any (chosen) for update skip locked) l",
            "where n.id = any (chosen) for update) l",
        ),
        "locks the nudges": ("where n.id = any (chosen) for update skip locked) l", "where n.id = any (chosen)) l"),
        "locks the row before it looks": (
            "    where j.id = nudge.job_id\n    for update skip locked;",
            "    where j.id = nudge.job_id;",
        ),
        "passes over locked rows": (
            "    where j.id = nudge.job_id\n    for update skip locked;",
            "    where j.id = nudge.job_id\n    for update;",
        ),
        "keeps the nudge of a locked row": ("      held := held || nudge.ids;\n", ""),
        "looks for failures when one has failed": (
            "faultline.can_resume(job.id, nudge.failures)",
            "faultline.can_resume(job.id, false)",
        ),
        "wakes only who can go on": ("elsif verdict.over then", "else"),
        "wakes who can go on": ("elsif verdict.over then", "elsif false then"),
        "clears the mark of waiting": (", faultline.clock()), suspended = null", ", faultline.clock())"),
        "asks those that run again when they are about to wait": (
            "      awake := awake || nudge.job_id;\n",
            "",
        ),
        "keeps the nudge of a running job that is locked": (
            "where a.job_id <> all (batch.locked) or a.job_id = any (batch.asleep)",
            "where a.job_id = any (batch.asleep)",
        ),
        "keeps the nudge of one that has gone to wait meanwhile": (
            "where a.job_id <> all (batch.locked) or a.job_id = any (batch.asleep)",
            "where a.job_id <> all (batch.locked)",
        ),
        "waits for no running job": (
            "where j.id = any (awake) for update skip locked",
            "where j.id = any (awake) for update",
        ),
    },
    "pause_nudges": {
        "makes one nudge of many": (
            "select min(n.id) as id, max(n.kind) as kind",
            "select n.id as id, n.kind as kind",
            (" where n.id = any (pause_nudges.held) group by n.job_id", " where n.id = any (pause_nudges.held)"),
        ),
        "keeps looking for failures": ("        kind = m.kind\n", "        kind = 0\n"),
        "pauses before it looks again": ("make_interval(secs => least(0.05 * 2 ^ least(n.looks, 10), 5))", "interval '0'"),
        "pauses twice as long each time": ("0.05 * 2 ^ least(n.looks, 10)", "0.05"),
        "pauses for five seconds at most": ("least(0.05 * 2 ^ least(n.looks, 10), 5)", "0.05 * 2 ^ least(n.looks, 10)"),
    },
    "sweep": {
        "looks only in READ COMMITTED": ("perform faultline.read_committed('sweep');", "null;"),
        "passes over locked sweeps": ("    limit 1\n    for update skip locked;", "    limit 1\n    for update;"),
        "locks the sweep": ("    limit 1\n    for update skip locked;", "    limit 1;"),
        "locks the parent": (
            "perform from faultline.open_jobs j where j.id = swept.job_id for update skip locked;",
            "perform from faultline.open_jobs j where j.id = swept.job_id;",
        ),
        "passes over a locked parent": (
            "where j.id = swept.job_id for update skip locked;",
            "where j.id = swept.job_id for update;",
        ),
        "leaves the children of a retried parent alone": (
            "if not faultline.is_swept(swept.job_id, swept.call_id) then",
            "if false then",
        ),
        "takes no more than it was asked for": ("    remaining := remaining - bite.edges;\n", ""),
        "goes on where it was": (
            "      set at_call = bite.at_call,\n          at_index = bite.at_index,\n",
            "      set at_call = s.at_call,\n",
        ),
        "comes back to locked children": ("    elsif swept.missed_call is not null then", "    elsif false then"),
        "ends when all are done": (
            "    else\n      delete from faultline.sweeps s where s.id = swept.id;\n",
            "    else\n      null;\n",
        ),
    },
    "is_swept": {
        "sweeps closed calls only": (" and c.outcome = 'closed'", ""),
        "sweeps for the failed": ("in ('failed', 'cancelled')", "in ('cancelled')"),
        "sweeps for the cancelled": ("in ('failed', 'cancelled')", "in ('failed')"),
    },
    "cancel_children_batch": {
        "passes over locked children": (
            "where j.id = any (children.ids) for update skip locked",
            "where j.id = any (children.ids) for update",
        ),
        "says which were locked": (
            "where o.call_id = u.call_id and u.job_id <> all (locked)",
            "where false",
        ),
        "comes back to those that are being retried": (
            "where o.call_id = u.call_id and u.job_id <> all (locked)",
            "join faultline.open_jobs x on x.id = u.job_id and x.state = 'queued' where u.job_id <> all (locked)",
        ),
    },
    "next_children": {
        "sweeps the children of this job": (" where c.job_id = next_children.job_id offset 0", " offset 0"),
        "sweeps one call where only that is asked for": (
            "        and (next_children.call_id is null or c.id = next_children.call_id)\n",
            "",
        ),
        "goes on where it was": (
            "case when c.id = next_children.at_call then next_children.at_index else -1 end",
            "-1",
        ),
    },
    "cancel_children": {
        "leaves jobs of others alone": ("'running') and j.call_id = u.call_id", "'running')"),
        "leaves ended children alone": (" and j.state in ('queued', 'running')", ""),
        "clears the owner": "        lease_owner = null,\n",
        "clears the expiry": "        lease_expires_at = null,\n",
        "clears the mark of waiting": "        suspended = null,\n",
        "is recorded in the journal": ("    from ended e\n    order by e.id\n", "    from ended e\n    where false\n"),
        "sweeps the children of children": (
            "where exists (select from faultline.calls c where c.job_id = any (array[e.id]) and c.kind = 'children')",
            "where false",
        ),
        "nudges those who watch": ("perform faultline.nudge_waiters(null, watched, true);", "null;"),
        "tells the workers of those that ran": (
            "perform pg_notify('faultline', json_build_object('cancelled', r.id)::text) from unnest(running) as r (id);",
            "null;",
        ),
    },
    "wake_resolvers": {
        "can be silent": (" <> 'off'", " <> 'silent'"),
        "tells workers": ("where coalesce(", "where false and coalesce("),
    },
    "claim": {
        "clears the mark of waiting": (",\n          suspended = null", ""),
        "says that a job belongs to a flow": ("j.flow_id is not null, j.group_key;", "false, j.group_key;"),
    },
    "complete": {
        "nudges those who wait": ("    perform faultline.nudge_waiters(call_ids, watched);", "    null;"),
        "nudges parents": ("array_agg(f.call_id) filter (where f.call_id is not null)", "null::bigint[]"),
        "nudges those who watch": ("array_agg(f.id) filter (where f.watched)", "null::uuid[]"),
        "keeps the flow in the ledger": ("f.flow_id, f.progress", "null, f.progress"),
    },
    "fail": {
        "tells who waits, and sweeps what is below": ("perform faultline.end_badly(ended_badly);", "null;"),
        "does so for a job that is only watched": (" or e.watched)", ")"),
        "does so for a job of a flow": ("(e.flow_id is not null or e.watched)", "e.watched"),
        "does so for no job that is tried again": ("e.state <> 'queued' and (e.flow_id", "(e.flow_id"),
    },
    "reap": {
        "tells who waits, and sweeps what is below": ("perform faultline.end_badly(ended_badly);", "null;"),
        "does so for a job that is only watched": (" or t.watched)", ")"),
        "does so for a job of a flow": ("(t.flow_id is not null or t.watched)", "t.watched"),
        "does so for no job that is tried again": ("t.state = 'failed' and (t.flow_id", "(t.flow_id"),
    },
    "cancel": {
        "nudges those who wait": (
            "perform faultline.end_badly(array[cancel.job_id], case when cancel.undo then 'undo' end);",
            "null;",
        ),
        "clears the mark of waiting": (",\n        suspended = null", ""),
        "tells those who resolve": ("'undo' end);\n      perform faultline.wake_resolvers();", "'undo' end);\n"),
    },
    "check_waits": {
        "refuses waits that are no array": ("jsonb_typeof(waits) is distinct from 'array'", "false"),
        "refuses more or fewer waits than leases": (
            "    or jsonb_array_length(waits) <> leases\n",
            "",
        ),
        "refuses to wait for nothing": ("jsonb_array_length(w.calls) = 0 else true end", "false else true end"),
    },
    "keep_waits": {
        "gives each job its own waits": (
            "(keep_waits.waits -> (i.position::integer - 1)) as w (\n    number text, kind",
            "(keep_waits.waits -> 0) as w (\n    number text, kind",
        ),
        "keeps the time of a wait that is known": (
            "coalesce(o.until, w.until, at + make_interval(secs => w.seconds)) as until",
            "coalesce(w.until, at + make_interval(secs => w.seconds), o.until) as until",
        ),
        "gives a budget a new moment each time": (
            "case when o.number = '0.0.0' then w.until end as again",
            "null::timestamptz as again",
        ),
        "waits no longer for what is not named": ("w.number is not null as awaited", "true as awaited"),
    },
    "end_badly": {
        "nudges the parent": ("if call_ids is not null or watched", "if watched"),
        "nudges those who watch": ("array_agg(j.id) filter (where j.watched)", "null"),
        "says that they have failed": ("nudge_waiters(call_ids, watched, true)", "nudge_waiters(call_ids, watched)"),
        "has what is below swept": ("from unnest(parents) as p (id);", "from unnest(parents) as p (id) where false;"),
        "sweeps with the reason": ("select p.id, end_badly.reason from", "select p.id, null from"),
    },
    "expire": {
        "tells who waits, and sweeps what is below": ("perform faultline.end_badly(ended_badly);", "null;"),
        "does so for a job that is only watched": (
            "(where e.flow_id is not null or e.watched)",
            "(where e.flow_id is not null)",
        ),
    },
}
