"""The guards of what programs call: records, children, jobs that are watched, signals."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Change, Guards


def _held(verb: str) -> dict[str, Change]:
    """Guards of a verb for one lease that may look only after the lock."""
    return {
        "is for the holder only": (
            f"if not faultline.lock_lease({verb}.job_id, {verb}.fencing_token, {verb}.owner) then",
            "if false then",
        ),
    }


def _looks(verb: str) -> dict[str, Change]:
    return {"looks only in READ COMMITTED": (f"perform faultline.read_committed('{verb}');", "null;")}


GUARDS: Guards = {
    "record": {
        **_held("record"),
        "refuses calls that are no array": ("jsonb_typeof(record.calls) is distinct from 'array'", "false"),
        "notices that the program has changed": (
            "perform faultline.same_call(known, given.kind, given.name, given.digest);",
            "null;",
        ),
        "leaves what has ended as it is": ("    if known.ended_at is not null then\n", "    if false then\n"),
        "says why it stops at a signal": (
            "          error = left(given.error, 16384)\n      where",
            "          error = c.error\n      where",
        ),
        "says that of signals only": ("c.kind = 'signal' and c.error is null", "c.error is null"),
        "says that once": ("c.kind = 'signal' and c.error is null", "c.kind = 'signal'"),
        "keeps the number of tries": ("tries = greatest(c.tries, given.tries)", "tries = given.tries"),
        "is waited for no longer when it has ended": (
            "awaited = c.awaited and given.outcome is null",
            "awaited = c.awaited",
        ),
        "sweeps the children of a call that is closed": (
            "insert into faultline.sweeps (job_id, call_id, reason, at) values (record.job_id, known.id, 'closed', at);",
            "null;",
        ),
        "makes the job a member of a flow": ("perform faultline.join_flow(record.job_id);", "null;"),
    },
    "same_call": {
        "compares the kind and the name": (
            "(known.kind, known.name) is distinct from (same_call.kind, same_call.name)",
            "false",
        ),
        "compares the arguments": ("known.digest is distinct from same_call.digest", "false"),
        "leaves arguments that named another job to the program": (" and known.digest !~ '(^|:)~(/|$)'", ""),
        "says of another name that the program has changed": (
            "detail = 'program_changed',\n        hint = 'Nothing was written. Bring",
            "hint = 'Nothing was written. Bring",
        ),
        "says of other arguments that the program has changed": (
            "detail = 'program_changed',\n        hint = 'Nothing was written. Give",
            "hint = 'Nothing was written. Give",
        ),
    },
    "same_spawn": {
        "compares the call": ("perform faultline.same_call(known, wanted.kind, wanted.name, wanted.digest);", "null;"),
        "compares the number of jobs": ("known.total <> wanted.total", "false"),
        "says that the program has changed": ("detail = 'program_changed',\n        ", ""),
    },
    "history": {
        "asks for this job": ("where c.job_id = history.job_id", "where true"),
        "is in the order of the numbers": ("order by string_to_array(c.number, '.')::numeric[]", "order by c.number"),
        "knows that the time is over": ("coalesce(c.until <= faultline.clock(), false)", "false"),
    },
    "spawn": {
        **_looks("spawn"),
        "is for the holder only": (
            "      if not faultline.lock_lease(wanted.job_id, wanted.fencing_token, spawn.owner) then\n        raise",
            "      if false then\n        raise",
            (
                "  if not faultline.lock_lease(wanted.job_id, wanted.fencing_token, spawn.owner) then\n    return",
                "  if false then\n    return",
            ),
        ),
        "compares the lease after the jobs are there": (
            "      if not faultline.lock_lease(wanted.job_id, wanted.fencing_token, spawn.owner) then\n        raise",
            "      if false then\n        raise",
        ),
        "looks again after the lock": (
            "if call.ended_at is not null or call.spawned >= spawn.first_index + chunk.size then\n        raise",
            "if false then\n        raise",
        ),
        "goes on where it was": ("elsif coalesce(call.spawned, 0) <> spawn.first_index then", "elsif false then"),
        "notices that the program has changed": (
            "        perform faultline.same_spawn(call, wanted);\n      end if;",
            "        null;\n      end if;",
            ("  perform faultline.same_spawn(call, wanted);\n  return", "  return"),
        ),
        "wakes workers": (
            "perform faultline.wake_new(made.queues, made.lowest_priority, made.lowest_run_at, at, chunk.size);",
            "null;",
        ),
    },
    "wake_new": {
        "wakes nobody for what is not due": ("if lowest_run_at > at then", "if false then"),
        "wakes workers of these queues": ("where served.name = any (wake_new.queues)\n      and", "where"),
        "wakes those that sleep": ("(served.name = any (w.sleeping) or wake_new", "(wake_new"),
        "names no more than are needed": ("[:wake_new.jobs + 2]", ""),
    },
    "set_watched": {
        "marks the jobs": (
            "update faultline.open_jobs j set watched = true",
            "update faultline.open_jobs j set watched = j.watched",
        ),
        "waits for no lock": ("    for update of j skip locked\n", "    for update of j\n"),
        "says that one is locked": ("  if found then\n    raise", "  if false then\n    raise"),
    },
    "refuse_cycle": {
        "refuses the job itself": (
            "if cycle = refuse_cycle.job_id then",
            "if false then",
            ("  elsif found then", "  elsif cycle <> refuse_cycle.job_id then"),
        ),
        "refuses one that waits for it": ("  elsif found then", "  elsif false then"),
        "passes over waits that are over": "\n    where c.ended_at is null",
    },
    "watch": {
        **_held("watch"),
        **_looks("watch"),
        "refuses to wait for nothing": ("if coalesce(cardinality(watch.targets), 0) = 0 or", "if"),
        "refuses too many": ("elsif cardinality(watch.targets) > targets_max then", "elsif false then"),
        "refuses jobs that do not exist": ("  if found then\n    raise", "  if false then\n    raise"),
        "waits for no job that waits for it": ("perform faultline.refuse_cycle(watch.job_id, watch.targets);", "null;"),
        "marks the jobs": ("perform faultline.set_watched(watch.targets);", "null;"),
        "notices that the program has changed": (
            "perform faultline.same_call(call, 'watch', watch.name, watch.digest);",
            "null;",
        ),
        "makes the job a member of a flow": ("perform faultline.join_flow(watch.job_id);", "null;"),
        "waits for a month at most": ("at + interval '30 days'", "null"),
    },
    "outcomes": {
        "asks for this call": ("where x.call_id = outcomes.call_id and", "where"),
        "goes on after the index": " and x.index > outcomes.after_index",
        "returns no more than it was asked for": ("      limit outcomes.max_rows\n", ""),
        "tells what was taken": ('nullif(c.result, \'{"failed": {}, "results": {}}\')', "null::jsonb"),
        "says that one is gone": ("coalesce(j.state, faultline.outcome_pruned(e.job_id, e.index))", "j.state"),
    },
    "collect_outcomes": {
        **_held("collect_outcomes"),
        **_looks("collect_outcomes"),
        "locks the call before it looks": (
            " and c.number = collect_outcomes.number for update;",
            " and c.number = collect_outcomes.number;",
        ),
        "refuses a call that waits for no jobs": (
            "if call.id is null or call.kind not in ('children', 'watch', 'after') then",
            "if false then",
        ),
        "leaves what was taken as it is": ("  if call.ended_at is null then\n    at :=", "  if true then\n    at :="),
        "waits until all are enqueued": ("if call.spawned < call.total then", "if false then"),
        "takes queued and running jobs for open": (
            "filter (where o.state in ('queued', 'running') and not o.is_done),",
            "filter (where o.state = 'running' and not o.is_done),",
        ),
        "keeps the beginning of an error where there are many": ("left(o.last_error, 200)", "o.last_error"),
        "keeps the first errors whole": ("case when o.nth <= 100 then", "case when false then"),
        "waits until all have ended": ("if still_open = 0 or (", "if true or ("),
        "ends at the first failure only where that is wanted": (
            "(failed is not null and call.policy = 'fast')",
            "(failed is not null)",
        ),
        "keeps the results of jobs of others": (
            "filter (where o.is_done and o.flow_id is distinct from flow)",
            "filter (where false)",
        ),
        "says who has failed": ("coalesce(failed, '{}')", "'{}'::jsonb"),
        "knows that the time is over": ("elsif call.until <= at then", "elsif false then"),
        "is history": (
            "set fencing_token = collect_outcomes.fencing_token, awaited = false, ended_at = at, outcome = call.outcome,",
            "set",
        ),
    },
    "kept_signal": {
        "asks for this job": "s.job_id = kept_signal.job_id\n      and ",
        "asks for this name": "      and s.name = kept_signal.name\n",
        "takes no signal twice": "      and s.received_by is null\n",
        "takes what was sent to this call": ("then s.for_call = kept_signal.number", "then false"),
        "takes nothing that was sent to another": ("then s.for_call = kept_signal.number", "then true"),
        "takes no answer to an earlier question": (
            "kept_signal.fresh is not true or s.sent_at >= kept_signal.begun_at",
            "true",
        ),
        "keeps answers where that is wanted": ("kept_signal.fresh is not true or ", ""),
        "takes the oldest": ("    order by s.id\n", "    order by s.id desc\n"),
    },
    "receive": {
        **_held("receive"),
        **_looks("receive"),
        "refuses a time that makes no sense": ("if receive.seconds not between 0 and 315360000 then", "if false then"),
        "notices that the program has changed": (
            "perform faultline.same_call(call, 'signal', receive.name, receive.digest);",
            "null;",
        ),
        "is waited for for a month at most": ("coalesce(receive.seconds, 2592000)", "receive.seconds"),
        "has a new time after a retry": ("    if call.until is null then", "    if false then"),
        "keeps its time": ("    if call.until is null then", "    if true then"),
        "keeps whether only fresh signals count": ("coalesce(receive.fresh, false)", "false"),
        "leaves what has ended as it is": ("  if call.ended_at is null then\n    taken", "  if true then\n    taken"),
        "receives a signal once": ("set received_by = call.number, received_at = at", "set received_at = at"),
        "takes a signal that is there for the time that is over": (
            "    if taken is not null then",
            "    if taken is not null and call.until > at then",
        ),
        "knows that the time is over": ("elsif call.until <= at then", "elsif false then"),
        "waits until the time is over": ("elsif call.until <= at then", "else"),
        "is history": ("    if call.outcome is not null then", "    if false then"),
        "makes the job a member of a flow": ("perform faultline.join_flow(receive.job_id);", "null;"),
    },
    "over_at": {
        "knows when a signal was sent": ("select s.sent_at from", "select null::timestamptz from"),
        "knows when the time of a signal was over": ("return least(timeout, (select", "return greatest(null, (select"),
        "waits until the time is over": ("case when call.until <= over_at.at then call.until end", "call.until"),
        "waits for open jobs": ("bool_and(o.state is null or o.state not in ('queued', 'running'))", "true"),
        "waits until all are enqueued": (" and call.spawned >= call.total\n", "\n"),
        "counts from the last that ended": ("coalesce(max(coalesce(f.finished_at", "coalesce(min(coalesce(f.finished_at"),
        "knows jobs that were pruned": (", call.begun_at)\n      end,", ", null)\n      end,"),
        "ends at the first failure only where that is wanted": (
            "case when call.policy = 'fast' then min(o.finished_at) end",
            "min(o.finished_at)",
        ),
        "ends at the first failure": (
            "case when call.policy = 'fast' then min(o.finished_at) end",
            "null::timestamptz",
        ),
        "knows a call without jobs": ("case when call.total = 0 then call.begun_at else ended end", "ended"),
        "knows when a step ended": ("return coalesce(call.ended_at, over_at.at);", "return over_at.at;"),
    },
    "first_over": {
        **_held("first_over"),
        **_looks("first_over"),
        "refuses waits that are no array": ("jsonb_typeof(first_over.waits) is distinct from 'array'", "false"),
        "refuses a time that makes no sense": ("if given.seconds not between 0 and 315360000 then", "if false then"),
        "says again what it said": (
            "if call.ended_at is not null and call.kind not in ('step', 'atomic') then",
            "if false then",
        ),
        "ends what was over first": ("if moment < coalesce(found_at, 'infinity') then", "if found_at is null then"),
        "ends the first of equal moments": (
            "if moment < coalesce(found_at, 'infinity') then",
            "if moment <= coalesce(found_at, 'infinity') then",
        ),
        "makes the job a member of a flow": ("perform faultline.join_flow(first_over.job_id);", "null;"),
    },
    "insert_or_find_call": {
        "notices that the program has changed": (
            "perform faultline.same_call(call, kind, name, digest);",
            "null;",
        ),
        "has a new time after a retry": ("if call.until is null and call.ended_at is null then", "if false then"),
        "keeps its time": ("if call.until is null and call.ended_at is null then", "if call.ended_at is null then"),
        "keeps whether only fresh signals count": (", ends, fresh)", ", ends, false)"),
    },
    "end_wait": {
        "receives a signal once": (
            "set received_by = call.number, received_at = at",
            "set received_at = at",
        ),
        "receives nothing that came after the time was over": ("\n      and s.sent_at = moment", ""),
        "is history": (
            "fencing_token = end_wait.fencing_token, awaited = false, ended_at = at, outcome = call.outcome, ",
            "",
        ),
    },
    "signal": {
        "wants a name": ("coalesce(length(signal.name), 0) not between 1 and 200", "false"),
        "wants a key of a decent length": ("length(signal.key) not between 1 and 500", "false"),
        "wants one job": ("(signal.job_id is null) = (signal.idempotency_key is null)", "false"),
        "refuses a large payload": ("octet_length(signal.payload::text) > bytes_max", "false"),
        "says that nobody has the key": (
            "    if not found then\n      raise exception 'no job",
            "    if false then\n      raise exception 'no job",
        ),
        "knows a signal that was sent before": (
            "    return false;\n  end if;\n  -- Read",
            "    null;\n  end if;\n  -- Read",
        ),
        "tells nothing of jobs of other queues": (
            ") and (signal.only_queues is null or exists (",
            ") and (true or exists (",
        ),
        "knows no jobs of other queues": ("and (signal.only_queues is null or j.queue = any (signal.only_queues));", ";"),
        "says that the job is not open": ("perform faultline.not_open(target, 'signalled', signal.only_queues);", "null;"),
        "refuses a job that has ended": ("elsif job.state not in ('queued', 'running') then", "elsif false then"),
        "locks nothing": (
            "or j.queue = any (signal.only_queues));\n  if not found then\n    perform faultline.not_open",
            "or j.queue = any (signal.only_queues)) for update;\n  if not found then\n    perform faultline.not_open",
        ),
        "keeps no more than it must": (") >= kept_max then", ") >= kept_max and false then"),
        "counts what was not received": (" and s.received_by is null limit kept_max", " limit kept_max"),
        "counts the same key once": ("  if not found then\n    return false;\n", "  if false then\n    return false;\n"),
        "leaves a nudge": ("insert into faultline.nudges (job_id, kind, at) values (target, 0, at);", "null;"),
        "records who sent it": ("if signal.sent_by is not null then", "if false then"),
        "tells those who resolve": ("perform faultline.wake_resolvers();", "null;"),
        "is for this call only": ("signal.key, signal.for_call, at,", "signal.key, null, at,"),
    },
    "check_wait": {
        "refuses an answer to a wait that is unknown": (
            "  if not found then\n    raise exception 'job % has no call",
            "  if false then\n    raise exception 'job % has no call",
        ),
        "refuses an answer to another wait": (
            "elsif call.kind <> 'signal' or call.name <> check_wait.signal then",
            "elsif false then",
        ),
        "refuses an answer to a wait that is over": ("elsif call.is_over then", "elsif false then"),
        "knows that the time of a wait is over": (" or coalesce(c.until <= check_wait.at, false) as is_over", " as is_over"),
    },
    "stream": {
        **_held("stream"),
        "refuses items that are no array": (
            "jsonb_typeof(stream.items) is distinct from 'array' or jsonb_array_length(stream.items) = 0",
            "false",
        ),
        "writes what is sent again once": ("if begins_at + stream.first_position < before.ends_at then", "if false then"),
        "leaves nothing out": (
            "elsif begins_at + stream.first_position > coalesce(before.ends_at, 0) then",
            "elsif false then",
        ),
        "is not endless": (
            "if coalesce(before.bytes, 0) + octet_length(stream.items::text) > bytes_max then",
            "if false then",
        ),
    },
    "keep_written": {
        "keeps what stands before a later call": ("coalesce(r.made::numeric < l.last, false) or ", ""),
        "keeps what has ended": (" or coalesce(s.fencing_token >= e.since, false)", ""),
        "keeps no step that has not ended": ("where k.has_ended and k.kind in", "where k.kind in"),
        "keeps nothing of a step that ran again": ("s.fencing_token >= e.since", "e.since is not null"),
        "keeps all of a race": (
            "case when k.kind = 'race' then 0 else k.fencing_token end as since",
            "k.fencing_token as since",
        ),
        "counts a race": ("('step', 'atomic', 'race')", "('step', 'atomic')"),
        "counts a branch that has ended": ("where k.kind = 'patch' and k.number like '%.0.0'", "where false"),
        "counts no other change": (" and k.number like '%.0.0'", ""),
        "counts no pause": (" and c.kind not in ('after', 'retry')", ""),
        "counts no call that is perhaps not made again": (" where not k.is_doubtful) p", ") p"),
        "deletes the rest": ("s.position >= (select min(b.position) from behind b)\n", "false\n"),
        "deletes nothing of another stream": (
            "s.name = keep_written.name and s.position >= (select min(b",
            "s.position >= (select min(b",
        ),
        "leaves no gaps": ("f.position + m.so_many - m.items", "f.position + m.position"),
        "counts the size": ("f.bytes + m.added", "m.added"),
        "has what moved read again": ("keep_written.name, keep_written.token, f", "keep_written.name, 1, f"),
        "begins behind what is kept": ("f.position + (select max(l.so_many) from moved l)", "f.position"),
        "knows where it moved from": ("m.reach, m.written_at", "'{\"\": 99}', m.written_at"),
    },
    "publish": {
        "enqueues for this topic": ("  where s.topic = publish.topic;", "  ;"),
        "refuses a payload that is no object": (
            "if jsonb_typeof(publish.payload::jsonb) is distinct from 'object' then",
            "if false then",
        ),
        "gives a task what it takes": ("case when s.takes is null then fields else", "case when true then fields else"),
        "gives each task a key of its own": (
            "publish.topic, s.task::text, publish.idempotency_key)",
            "publish.topic, publish.idempotency_key)",
        ),
        "gives each task an id of its own": ("left(md5(s.task), 12)", "left(md5('t'), 12)"),
        "returns the jobs of a topic in their order": ("select tasks[e.position], queues", "select tasks[1], queues"),
    },
    "subscribe": {
        "wants options that all jobs can share": (
            "wanted ?| array['task', 'args', 'id', 'idempotency_key', 'run_at', 'trace', 'digest', 'expires_at']",
            "false",
        ),
        "writes nothing that is known": (
            "if found and was.options = wanted and was.takes is not distinct from subscribe.takes then",
            "if false then",
        ),
    },
    "program_changed": {
        **_held("program_changed"),
        "records each code once": ("if since is null then", "if true then"),
        "tells one code from another": ("    and e.detail ->> 'code' = program_changed.code\n", ""),
        "asks for this job": ("e.job_id = program_changed.job_id\n    and ", ""),
        "waits longer each time": ("greatest(5, extract(epoch from at - since)::float8)", "5"),
        "waits for ten minutes at most": (
            "least(600, greatest(5, extract(epoch from at - since)::float8))",
            "greatest(5, extract(epoch from at - since)::float8)",
        ),
        "waits for five seconds at least": (
            "greatest(5, extract(epoch from at - since)::float8)",
            "extract(epoch from at - since)::float8",
        ),
    },
    "wake_changed_programs": {
        "asks for these queues": ("where r.queue = wanted\n            and", "where"),
        "asks for these tasks": ("          and d.task = any (wake_changed_programs.tasks)\n", ""),
        "leaves alone who waits": ("          and j.suspended is null\n", ""),
        "leaves alone what waits for longer": ("            and r.next_run_at < at + interval '15 minutes'\n", ""),
        "leaves alone what has failed since": (
            "case when e.event = 'program_changed' then e.detail ->> 'code' <> wake_changed_programs.code end",
            "e.detail ->> 'code' is distinct from wake_changed_programs.code",
        ),
        "asks for other code": (" then e.detail ->> 'code' <> wake_changed_programs.code end", " then true end"),
        "asks for the last entry": ("order by e.id desc", "order by e.id"),
        "looks at every priority": ("and j.priority > level\n", "and j.priority > level and level < -30000\n"),
        "does not wait for locks": ("for update skip locked", "for update"),
        "wakes workers": ("  perform faultline.wake_for(due_ids);\n", ""),
    },
    "check_call": {
        "refuses a time that makes no sense": ("if until_seconds not between 0 and 315360000 then", "if false then"),
        "leaves the end of a wait to the database": (
            "if outcome <> 'closed' and kind in ('signal', 'children', 'watch', 'after') then",
            "if false then",
        ),
        "refuses a call that makes no sense": (") is not true then", ") is null and false then"),
    },
    "read_chunk": {
        "refuses an unknown kind": (
            "wanted.kind is distinct from 'children' and wanted.kind is distinct from 'detached'",
            "false",
        ),
        "refuses more children than a call may have": ("elsif wanted.total > jobs_max then", "elsif false then"),
        "refuses a chunk that is too large": ("if size > chunk_max\n", "if false\n"),
        "refuses an empty chunk": ("    or (size = 0 and wanted.total > 0)\n", ""),
        "refuses a chunk beyond the last": ("    or first_index + size > wanted.total\n", ""),
    },
    "insert_chunk": {
        "puts children into the flow": ("select p.*, flow, case", "select p.*, null::uuid, case"),
        "tells children whom their end counts for": (
            "case wanted.kind when 'children' then wanted.id end\n",
            "null::bigint\n",
        ),
        "leaves jobs that existed alone": ("where u.new and j.id = any (array[u.id])", "where j.id = any (array[u.id])"),
        "knows jobs that have ended": (
            "if exists (select from faultline.ledger f where f.job_id = any (ids)) then",
            "if false then",
        ),
    },
    "keep_chunk": {
        "makes the job a member of a flow": ("perform faultline.join_flow(wanted.job_id);", "null;"),
        "gives every child its index": ("keep_chunk.first_index + u.position - 1", "u.position - 1"),
        "counts what is spawned": ("set spawned = c.spawned + cardinality(keep_chunk.ids),", "set spawned = c.spawned,"),
        "waits for no job that waits for it": ("perform faultline.refuse_cycle(wanted.job_id, keep_chunk.known);", "null;"),
        "marks the jobs that existed": ("perform faultline.set_watched(keep_chunk.known);", "null;"),
        "has ended where nobody waits": (
            "case wanted.kind when 'detached' then keep_chunk.at end",
            "null",
            ("case wanted.kind when 'detached' then 'done' end", "null"),
        ),
    },
}
