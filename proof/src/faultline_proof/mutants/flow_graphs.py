"""The guards of graphs, of jobs that start over, of readers of streams, and of subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline_proof.mutants.leases import BATCH

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

GUARDS: Guards = {
    "continue_as_new": {
        **{guard: change for guard, change in BATCH.items() if guard != "looks up one job after the other"},
        "refuses arguments that are no array": ("jsonb_typeof(continue_as_new.args) is distinct from 'array'", "false"),
        "refuses more or fewer arguments than leases": (
            "jsonb_array_length(continue_as_new.args) <> cardinality(continue_as_new.job_ids)",
            "false",
        ),
        "refuses arguments that are no object": ("jsonb_typeof(a.value) <> 'object'", "false"),
        "refuses large arguments": ("octet_length(a.value::text) > bytes_max", "false"),
        "leaves no open child behind": ("elsif busy.job_id is not null then", "elsif false then"),
        "waits until a race is cleared": ("if busy.outcome = 'closed' then", "if false then"),
        "tells an open child from one that is being cancelled": (
            "    order by c.outcome is not distinct from 'closed'\n",
            "    order by c.outcome is distinct from 'closed'\n",
        ),
        "clears the owner": "        lease_owner = null,\n",
        "clears the expiry": "        lease_expires_at = null,\n",
        "has not started": "        started = false,\n",
        "counts the attempts from zero": "        attempt = 0,\n",
        "counts the reaps from zero": "        reaps = 0,\n",
        "forgets the progress": "        progress = null,\n",
        "forgets the error": "        last_error = null,\n",
        "gives each job its own arguments": (
            "continue_as_new.args -> (i.position::integer - 1)",
            "continue_as_new.args -> 0",
        ),
        "is recorded in the journal": (
            "jsonb_build_object('by', 'its task')\n    from unnest(ids, done) as i (id, position);",
            "jsonb_build_object('by', 'its task')\n    from unnest(ids, done) as i (id, position) where false;",
        ),
        "wakes workers": ("perform faultline.wake_for(ids);", "null;"),
    },
    "keep_earlier_children": {
        "keeps its children in the flow": (
            " as i (id)\n  cross join",
            " as i (id) join (select where false) n on true\n  cross join",
        ),
        "keeps the children of earlier rounds": (
            "coalesce((select max(x.index) from faultline.edges x where x.call_id = k.id), -1)",
            "-1",
        ),
    },
    "forget_round": {
        "leaves no edges behind": (
            "where c.job_id = any (ids) and c.number <> '0.0' and c.kind <> 'after'\n  ));",
            "where false\n  ));",
        ),
        "forgets the calls": (
            "delete from faultline.calls c where c.job_id = any (ids) and c.number <> '0.0' and c.kind <> 'after';",
            "null;",
        ),
        "keeps what a job of a graph comes after": (
            "delete from faultline.calls c where c.job_id = any (ids) and c.number <> '0.0' and c.kind <> 'after';",
            "delete from faultline.calls c where c.job_id = any (ids) and c.number <> '0.0';",
        ),
        "keeps which jobs these are": (" and c.kind <> 'after'\n  ));", "\n  ));"),
        "forgets what was received": (
            "s.key is null and (s.received_by is not null or s.for_call is not null);",
            "s.key is null and s.for_call is not null;",
        ),
        "forgets answers to its calls": (
            "s.key is null and (s.received_by is not null or s.for_call is not null);",
            "s.key is null and s.received_by is not null;",
        ),
        "keeps signals that it has not received": (
            "s.key is null and (s.received_by is not null or s.for_call is not null);",
            "s.key is null;",
        ),
        "keeps keys that were counted": ("s.key is null and (s.received_by", "(s.received_by"),
        "keeps signals with a key that it has not received": (
            "s.key is not null and (s.received_by is not null or s.for_call is not null)",
            "s.key is not null",
        ),
        "marks a signal with its own round": ("    and coalesce(strpos(s.received_by, '/'), 0) = 0;", "    ;"),
        "forgets the streams": ("delete from faultline.streams s where s.job_id = any (ids);", "null;"),
        "forgets the steps": ("delete from faultline.steps s where s.job_id = any (ids);", "null;"),
    },
    "enqueue_flow": {
        "looks only in READ COMMITTED": ("perform faultline.read_committed('enqueue_flow');", "null;"),
        "takes all for a part of what its key stands for": (
            "|| jsonb_build_object('digest', md5(graph::text))",
            "|| jsonb_build_object('digest', md5(''))",
        ),
        "enqueues a graph with a key once": ("if not root.is_new then", "if false then"),
        "says in which order it has them": (
            "where c.job_id = root.id and c.number = '0'\n      order by 1;",
            "where c.job_id = root.id and c.number = '0'\n      order by 1 desc;",
        ),
        "has the root wait": ("set suspended = true, next_run_at = '9999-01-01Z', in_group", "set in_group"),
        "is a flow": (
            "group_at = null, flow_id = j.id",
            "group_at = null",
        ),
        "knows the flow's root": ("  insert into faultline.flows (id, begun_at) values (root.id, at);\n", ""),
        "wakes workers": ("  perform faultline.wake_new(\n    made.queues,", "  perform faultline.wake_new(\n    '{}',"),
        "says that it appears late": (
            "case when enqueue_flow.appears_late then transaction_timestamp() else at end",
            "at",
        ),
    },
    "read_graph": {
        "refuses what is no array": ("jsonb_typeof(graph) is distinct from 'array' or ", ""),
        "refuses a graph without jobs": ("jsonb_array_length(graph) < 2", "false"),
        "refuses jobs that are no objects": ("where jsonb_typeof(n.value) <> 'object')", "where false)"),
        "says why a text is refused": ("when data_exception or program_limit_exceeded then", "when division_by_zero then"),
        "is not endless": ("if jsonb_array_length(graph) > 10001 then", "if false then"),
    },
    "graph_problem": {
        "refuses a job without a name": ("where coalesce(n.name, '') = '' limit 1", "where false limit 1"),
        "refuses one name for two jobs": ("having count(*) > 1 limit 1", "having false limit 1"),
        "refuses names that are no array": (
            "where n.name is null or n.nth >= a.nth",
            "where n.name is null and a.name is not null or n.nth >= a.nth",
        ),
        "refuses jobs that are not in the graph": (
            "where n.name is null or n.nth >= a.nth",
            "where a.name is null or n.nth >= a.nth",
        ),
        "refuses jobs that do not stand before": ("where n.name is null or n.nth >= a.nth", "where n.name is null"),
        "refuses one job twice": ("      having count(*) > 1\n", "      having false\n"),
        "refuses an unknown policy": ("coalesce(n.value ->> 'if_failed', '') not in ('cancel', 'run')", "false"),
        "refuses jobs with a key or an id of their own": (
            "(n.value ->> 'idempotency_key' is not null or n.value ->> 'id' is not null)",
            "false",
        ),
        "refuses jobs that wait and have a time": (
            "(n.value ->> 'delay_seconds' is not null or n.value ->> 'run_at' is not null)",
            "false",
        ),
    },
    "insert_graph_jobs": {
        "runs nothing before its time": ("case when w.waits then '9999-01-01Z' else p.next_run_at end", "p.next_run_at"),
        "marks those that wait": ("case when w.waits then true end\n", "null::boolean\n"),
        "marks those that are waited for": ("case when t.name is not null then true end", "null::boolean"),
        "puts the jobs into the flow": ("p.group_at end, root_id, root_call,", "p.group_at end, null::uuid, root_call,"),
        "has the jobs told to the root": ("p.group_at end, root_id, root_call,", "p.group_at end, root_id, null::bigint,"),
        "wakes no workers for what waits": (
            "array_agg(distinct i.queue) filter (where i.suspended is null)",
            "array_agg(distinct i.queue)",
        ),
    },
    "insert_graph_calls": {
        "has the root go on when all have ended": (
            "'children', 'jobs', 0, at, true, 'raise'",
            "'children', 'jobs', 0, at, false, 'raise'",
        ),
        "has a job go on when those before it have ended": (
            "'after', 'after', 0, at, true, coalesce",
            "'after', 'after', 0, at, false, coalesce",
        ),
        "keeps what becomes of a job": ("coalesce(n.value ->> 'if_failed', 'cancel')", "'cancel'"),
        "cancels what cannot run unless told otherwise": ("coalesce(n.value ->> 'if_failed', 'cancel')", "'run'"),
        "has the root wait for all": (
            "select root_call, p.nth - 1, p.id from members p\n",
            "select root_call, p.nth - 1, p.id from members p where p.nth = 1\n",
        ),
        "has each wait for those that it names": ("select c.id, a.nth - 1, t.id\n", "select c.id, a.nth - 1, ids[1]\n"),
    },
    "came_after": {
        "asks for this call": ("    where e.call_id = came_after.call_id\n", ""),
        "tells them in their order": ("    order by e.index;", "    order by e.index desc;"),
        "says which succeeded when it was taken": (
            "else coalesce(came_after.failed -> e.index::text ->> 'state', 'succeeded')",
            "else j.state",
        ),
        "says how they stand": (
            "when came_after.failed is null then j.state",
            "when came_after.failed is null then 'succeeded'",
        ),
        "gives results of what succeeded only": ("case when s.state = 'succeeded' then j.result end", "j.result"),
        "says why one failed": ("else came_after.failed -> e.index::text ->> 'error'", "else null"),
        "says why one has failed so far": (
            "when came_after.failed is null then j.last_error",
            "when came_after.failed is null then null",
        ),
        "calls them by their names": ("coalesce(r.args -> 'names' ->> m.index, j.task)", "j.task"),
        "finds the names at the root": ("c.kind = 'children' and c.number = '0'", "c.kind = 'after' and c.number = '0'"),
    },
    "chunks": {
        "asks for this job": ("where s.job_id = $1 and s.name", "where s.name"),
        "asks for this stream": " and s.name = $2",
        "goes on behind the position": " and (s.fencing_token, s.position) > ($3, $4)",
        "is in the order of the stream": (
            "    order by s.fencing_token, s.position\n    limit",
            "    order by s.fencing_token, s.position desc\n    limit",
        ),
        "returns no more than it was asked for": ("limit least(greatest($5, 1), 1000)", "limit 1000"),
        "returns a thousand at most": ("least(greatest($5, 1), 1000)", "greatest($5, 1)"),
        "says how the job stands": ("  left join lateral (", "  join lateral ("),
    },
    "unsubscribe": {
        "ends this task's subscription only": " and s.task = unsubscribe.task",
        "ends the subscription to this topic only": "s.topic = unsubscribe.topic and ",
        "records what was there only": ("  if not found then\n    return false;", "  if false then\n    return false;"),
        "is recorded in the journal": (
            "  insert into faultline.journal (at, event, detail)\n  values (",
            "  insert into faultline.journal (at, event, detail)\n  select v.* from (values (",
            ("|| signed\n  );", "|| signed\n  )) v where false;"),
        ),
    },
}
