"""The guards of limits: what a claim counts, who may change them, and budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

GUARDS: Guards = {
    "claim": {
        "goes by the limits of its queue": ("if known_queue.limited then", "if false then"),
        "waits for the disk unless its caller syncs it": ("if claim.syncs then", "if true then"),
        "does not keep others waiting for the disk": ("      perform faultline.allow_asynchronous_commit();", "      null;"),
    },
    "allow_asynchronous_commit": {
        "waits for the disk where something was written before": ("pg_current_xact_id_if_assigned() is null", "true"),
        "is over with the transaction": ("'off', true)", "'off', false)"),
    },
    "sync_claim": {
        "waits for what was committed before": ("  perform pg_logical_emit_message(true, 'faultline', '');", "  null;"),
        "says whether the claim is there": ("  return exists (\n", "  return true or exists (\n"),
        "looks at the token": " and j.fencing_token = sync_claim.token",
        "looks at the owner": " and j.lease_owner = sync_claim.owner",
        "looks at the job": "j.id = sync_claim.job_id and ",
    },
    "claim_limited": {
        "ends a claim that is left open": (
            "    perform set_config('idle_in_transaction_session_timeout', '5s', true);\n",
            "    null;\n",
        ),
        "lets due jobs arrive": (
            "    perform faultline.move_due_jobs_into_groups(claim_limited.queue, due);\n",
            "    null;\n",
        ),
        "grants nothing of a queue that was paused meanwhile": (" and q.paused_at is null\n", "\n"),
        "grants nothing while `recover` holds it": ("s.limits_held_until > faultline.clock()", "false"),
        "looks whether it is held after a recover": "  lock table faultline.open_jobs in row exclusive mode;\n",
        "gives what is left to those who wait": ("for pass in 1..2 loop", "for pass in 1..1 loop"),
        "counts every grant": ("has_permit = true,", "has_permit = null,"),
        "gives a job its true time back": ("coalesce(j.group_at, j.next_run_at)", "j.next_run_at"),
        "adds up what it granted": "    limited_queue.holding := limited_queue.holding + cardinality(picked.ctids);\n",
        "takes tokens": "    limited_queue.tokens := limited_queue.tokens - cardinality(picked.ctids);\n",
        "takes no more than it was asked for": "    room := room - cardinality(picked.ctids);\n",
        "stores what it counted": "  perform faultline.save_limited_queue(before, limited_queue, due);\n",
    },
    "apply_until_room": {
        "hears what happened": (
            "    limited_queue := part.limited_queue;\n    limited_queue.unfinished",
            "    limited_queue.unfinished",
        ),
        "hears of few groups for a few jobs": ("greatest(500, 2 * max_jobs)", "20000"),
        "hears of as many groups as it grants jobs": ("greatest(500, 2 * max_jobs)", "500"),
        "hears on where nothing can be granted": ("exit when not limited_queue.unfinished or", "exit when true or"),
        "hears no more than it must where nothing may be granted": (
            "limited_queue.unfinished or room <= 0 or",
            "limited_queue.unfinished or",
        ),
        "says that it has not done looking": (
            "limited_queue.unfinished := part.more;",
            "limited_queue.unfinished := false;",
        ),
        "makes groups ready whose time has come": "    limited_queue := faultline.mark_groups_ready(limited_queue, due);\n",
        "grants no more than the queue may": ("room := least(part.room, max_jobs)", "room := max_jobs"),
    },
    "pick_jobs": {
        "takes those that kept a permit": ("  if kept then\n", "  if false then\n"),
        "leaves half to others than heads": (
            "case when divided then (room + (random() < 0.5)::integer) / 2 else room end",
            "room",
        ),
        "leaves half to jobs of no group": (
            "case when mixed then (room - cardinality(ctids) + (random() < 0.5)::integer) / 2 else",
            "case when false then 0 else",
        ),
        "takes jobs of no group where groups wait too": (
            "if mixed or not (ready or kept) then",
            "if not (ready or kept) then",
        ),
        "takes jobs of no group": (
            "    ctids := ctids || faultline.pick_ungrouped(limited_queue.queue, due, room - cardinality(ctids));\n",
            "    null;\n",
        ),
    },
    "lock_limited_queue": {
        "waits a moment": ("  perform set_config('lock_timeout', '250ms', true);\n", ""),
        "keeps the caller's patience": "  perform set_config('lock_timeout', patience, true);\n",
    },
    "pick_groups": {
        "passes many groups that are empty": ("least(10 * looks, 500)", "0"),
        "takes no more than it was asked for": ("        where f.claimed <= remaining\n", ""),
        "looks past so many locked jobs only": ("    exit when locked >= 500;\n", ""),
        "says that it has not looked at all": (" or round = 20 or locked >= 500;", " or round = 20;"),
        "moves on where groups come in": (
            "greatest(limited_queue.arrival_virtual_time, limited_queue.virtual_time + 1) + cardinality(picked) * 1e-6;",
            "limited_queue.arrival_virtual_time;",
        ),
        "puts groups that come in behind those that were served just before": (
            "limited_queue.virtual_time + 1)",
            "limited_queue.virtual_time)",
        ),
    },
    "list_ready_groups": {
        "keeps within the group's limit": ("l.cap - g.holding, ", ""),
        "keeps within the group's rate": ("coalesce(floor(t.tokens), most)", "most"),
        "reads no turns that were served": (" and g.virtual_time >= limited_queue.virtual_time\n", "\n"),
        "sees groups that hold nothing": (
            "g.holding_per_weight = 0 and g.virtual_time >= limited_queue.virtual_time",
            "g.holding_per_weight < 0",
        ),
        "sees groups that hold something": (
            "g.ready and g.holding_per_weight > 0\n",
            "g.ready and g.holding_per_weight < 0\n",
        ),
    },
    "share_room": {
        "serves by what groups hold": ("order by (g.holding + n.nth - 1) / g.weight, ", "order by "),
        "gives one each only where no group is owed two": (
            " and max(g.holding / g.weight) < min((g.holding + 1) / g.weight)\n",
            "\n",
        ),
    },
    "pick_from_groups": {
        "looks again at a locked row": ("s.want = 0 or not j.are_first or s.seen", "s.want = 0 or s.seen"),
        "picks no job twice": (
            "still in its group.\n            and (r.priority, r.group_at, r.id) > (a.",
            "still in its group.\n            and (r.priority, r.group_at, r.id) >= (a.",
        ),
        "passes over what has expired": (
            "            and (r.expires_at is null or r.expires_at > pick_from_groups.due or r.fencing_token > 0)\n",
            "",
        ),
    },
    "save_served_groups": {
        "moves the turn by the weight": (
            "virtual_time = s.virtual_time + s.jobs / s.weight",
            "virtual_time = s.virtual_time + s.jobs",
        ),
        "moves no head past a locked row": (
            "s.are_first then coalesce(s.last_id",
            "true then coalesce(s.last_id",
            ("s.are_first then coalesce(s.last_at", "true then coalesce(s.last_at"),
        ),
        "waits for the next token": ("due + make_interval(secs => (1 - s.tokens) / s.rate)", "due"),
    },
    "next_claim_at": {
        "says who has not done looking": ("when limited_queue.unfinished and room > 0 then", "when false then"),
        "knows when recover holds it": ("s.limits_held_until > at", "false"),
    },
    "pick_past_locked_head": {
        "passes over what somebody has locked": (
            "    limit pick_past_locked_head.most\n    for update of r skip locked\n",
            "    limit 0\n",
        ),
        "keeps within what the group may have": (
            "    limit pick_past_locked_head.most\n    for update",
            "    limit pick_past_locked_head.most + 1\n    for update",
        ),
        "passes nothing in a group that keeps its order": ("::boolean then", "::boolean and false then"),
        "passes over what has expired": (
            "(r.expires_at is null or r.expires_at > pick_past_locked_head.due or r.fencing_token > 0)",
            "true",
        ),
    },
    "pick_permit_holders": {
        "takes one of a group": ("k.nth = 1 and k.group_key", "k.group_key"),
        "takes one of a group, however often it looks": (" and k.group_key <> all (group_keys)", ""),
        "takes no job twice": ("        and r.ctid <> all (ctids)\n", ""),
        "puts off together those that may not start": (
            "array[pick_permit_holders.most, 500]",
            "array[pick_permit_holders.most]",
        ),
        "takes no more than it may": ("limit pick_permit_holders.most - cardinality(ctids)", "limit 500"),
        "takes none beside one that runs": ("(coalesce(g.holding, 1) <= 1 or", "(true or"),
        "takes a token of the group": (
            "n.rate is not null and n.tokens < 1",
            "false",
            ("j.rate is null or j.tokens >= 1", "true"),
        ),
    },
    "write_limit": {
        "lets those look again who waited": (
            (
                "    perform faultline.recheck_groups(write_limit.queue, write_limit.group_key, coalesce(was.effective,"
                " '{}'));\n"
            ),
            "    null;\n",
        ),
    },
    "recheck_groups": {
        "lets those look again who waited for a permit": (
            "or g.has_waiting and not g.ready and g.not_before is null and g.holding < coalesce(",
            "or g.has_waiting and not g.ready and g.not_before is null and g.holding < least(-1, ",
        ),
        "lets those look again who waited for a token": ("g.not_before is not null and faster\n", "false\n"),
        "weighs anew": (" or reweighed and (o.has_waiting or o.holding > 0)", ""),
        "begins with the turns again": ("case when not reweighed then g.virtual_time end", "g.virtual_time"),
        "makes no group ready that has no token": ("\n        and (t.tokens < 1) is not true", ""),
        "looks again when there is a token": (
            "at + make_interval(secs => (1 - t.tokens) / faultline.rate_of(l.fields))",
            "null",
        ),
        "puts who may go on behind those who wait": (
            "select s.arrival_virtual_time from",
            "select null::double precision from",
        ),
    },
    "mark_groups_ready": {
        "puts who waited behind those who wait": (
            "greatest(g.virtual_time, limited_queue.arrival_virtual_time + n.nth * 1e-9)",
            "g.virtual_time",
        ),
        "puts them behind one that waits": (
            "limited_queue.arrival_virtual_time + n.nth * 1e-9",
            "limited_queue.virtual_time",
        ),
    },
    "recount_queue": {
        "puts who is counted anew behind those who wait": (
            "(select l.arrival_virtual_time from",
            "(select g.virtual_time from",
        ),
    },
    "maintain_limits": {
        "lets a hold of a clock ahead end": (
            "  where s.limits_held_until > faultline.clock() + s.limits_held_for;",
            "  where false;",
        ),
        "does not keep claims waiting for the disk": ("  perform faultline.allow_asynchronous_commit();", "  null;"),
        "takes few queues at a time": (" order by random() limit 50)", ")"),
        "takes others each time": ("order by random() limit 50", "order by q.name limit 50"),
        "lets jobs give way": ("    perform faultline.break_group_deadlocks();\n", "    null;\n"),
    },
    "save_limited_queue": {
        "stores where groups come in": (
            "      arrival_virtual_time = is_now.arrival_virtual_time\n",
            "      arrival_virtual_time = l.arrival_virtual_time\n",
        ),
    },
    "move_due_jobs_into_groups": {
        "takes no more than a thousand": ("    limit move_due_jobs_into_groups.most\n", "    limit 1000000\n"),
        "leaves those that kept a permit": "      and r.has_permit is null\n",
    },
    "is_miscounted": {
        "looks at what the queue holds": (
            "select l.holding <> (select",
            "select l.holding < 0 and 0 = (select",
        ),
        "looks at what groups hold": (
            "group by k.group_key\n      having sum(k.holding) <> 0",
            "group by k.group_key\n      having false",
        ),
    },
    "maintain_queue": {
        "writes a row that is missing again": (
            "        perform faultline.limit_queue(maintain_queue.queue);\n",
            "        null;\n",
        ),
        "waits for nobody who changes the queue": (
            "where q.name = maintain_queue.queue for update skip locked;",
            "where q.name = maintain_queue.queue for update;",
        ),
        "hears everything once a minute": ("    limited_queue.seen_to := '0';\n", "    null;\n"),
        "brings turns back": ("if limited_queue.virtual_time > 1e6 then", "if false then"),
        "counts what is wrong anew": ("    perform faultline.recount_queue(maintain_queue.queue);\n", "    null;\n"),
        "takes no time of a clock that was ahead": ("set ready = g.has_waiting, not_before = null", "set ready = g.ready"),
        "puts right who stands before the turn": (
            "    set virtual_time = limited_queue.arrival_virtual_time\n",
            "    set virtual_time = g.virtual_time\n",
        ),
    },
    "forget_groups": {
        "keeps groups whose tokens are due": (
            "(each_group ->> 'burst')::double precision / faultline.rate_of(each_group), 0)",
            "0, 0)",
        ),
        "keeps groups whose own tokens are due": (
            "(not have_own or i.changed_second < coalesce",
            "(true or i.changed_second < coalesce",
        ),
    },
    "limit_queue": {
        "writes a row that is missing again": ("if found and was then", "if was then"),
        "counts what jobs hold": ("  perform faultline.recount_queue(limit_queue.queue);\n", ""),
        "gives a row that was missing no tokens": ("case when was then 0 end, ", "null, "),
        "puts who comes in behind those who wait": ("coalesce(max(g.virtual_time), 0)", "count(*) * 0"),
        "lets all that was enqueued before go to its group": (
            "  perform faultline.move_due_jobs_into_groups(limit_queue.queue, faultline.clock(), 2147483647);\n",
            "",
        ),
    },
    "checked_limit": {
        "stores whole numbers": ("if fields ->> 'concurrency' is not null then", "if false then"),
    },
    "inherit_group": {
        "refuses a child that would wait for its parent": ("c.value ->> 'group' = w.group_key and ", "false and "),
        "looks at all that wait": ("where w.depth < 1000", "where false"),
        "looks at what is inherited": (
            "from json_array_elements(document) as c",
            "from json_array_elements(inherit_group.jobs) as c",
        ),
        "looks at those that name a group": ("job.group_key is null and not inherit_group.named", "job.group_key is null"),
    },
    "resume": {
        "keeps the limits": (
            "delete from faultline.queues q where q.name = resume.queue and not q.limited",
            "delete from faultline.queues q where q.name = resume.queue",
        ),
    },
    "take_budget": {
        "wants READ COMMITTED": "  perform faultline.read_committed('take_budget');\n",
        "refuses costs that are no numbers": (
            "not coalesce(take_budget.cost > 0 and take_budget.cost < 'Infinity', false)",
            "not coalesce(take_budget.cost > 0, false)",
        ),
        "refuses to give something back": ("take_budget.cost > 0 and ", ""),
        "takes for who has the lease": (
            "if not faultline.lock_lease(take_budget.job_id, take_budget.fencing_token, take_budget.owner) then",
            "if false then",
        ),
        "takes once": ("(memory ->> 'number')::integer = take_budget.number", "false"),
        "takes again in a later run": ("(memory ->> 'token')::bigint = take_budget.fencing_token", "true"),
        "takes one after another": ("where b.name = take_budget.budget for update;", "where b.name = take_budget.budget;"),
        "says what can never be had": ("if take_budget.cost > burst then", "if false then"),
        "knows no budget that is not there": ("if bucket.name is null then", "if false then"),
        "takes what is there": ("if bucket.tokens >= take_budget.cost + kept\n", "if bucket.tokens >= kept\n"),
        "keeps something for the next one": (
            "kept := case when bucket.next_job <> take_budget.job_id then bucket.next_cost else 0 end;",
            "kept := 0;",
        ),
        "lets those go first who have waited": (
            "and (has_waited or bucket.reserved_until <= at or bucket.tokens >= burst)",
            "and true",
        ),
        "lets others have what would be lost": (" or bucket.tokens >= burst)", ")"),
        "knows who has waited": ("(wait ->> 'from')::timestamptz <= at, false)", "false, false)"),
        "takes it away": "    bucket.tokens := bucket.tokens - take_budget.cost;\n",
        "remembers what it took": (
            "    memory := memory || jsonb_build_object('token', take_budget.fencing_token, 'number', take_budget.number);\n"
        ),
    },
    "refill_budget": {
        "fills what it has since": (
            "bucket.refilled_at := faultline.refill_moment(bucket.refilled_at, at);",
            "bucket.refilled_at := coalesce(bucket.refilled_at, at);",
        ),
        "forgets the moments of a clock that was ahead": ("    bucket.reserved_until := at;\n", "    null;\n"),
        "forgets who does not come": ("if bucket.next_until <= at or", "if false or"),
        "forgets who has ended": ("bucket.next_job <> refill_budget.job_id and not exists (", "false and not exists ("),
    },
    "reserve_budget_slot": {
        "puts one behind another": (
            "greatest(extract(epoch from nullif(bucket.reserved_until, '-infinity') - at) * rate, kept - bucket.tokens)",
            "kept - bucket.tokens",
        ),
        "remembers the last moment": ("  bucket.reserved_until := greatest(bucket.reserved_until, moment);\n", ""),
        "serves who has waited longest": (
            "(since, reserve_budget_slot.job_id) < (bucket.next_since, bucket.next_job)",
            "false",
        ),
        "has one next, until it is served": (
            "(since, reserve_budget_slot.job_id) < (bucket.next_since, bucket.next_job)",
            "true",
        ),
        "knows since when it waits": ("coalesce((wait ->> 'since')::timestamptz, at)", "at"),
        "keeps for ten seconds": ("moment + interval '10 seconds'", "moment"),
        "asks at half of a long time": ("at + (moment - at) / 2, at + interval '1 minute',", "moment,"),
        "keeps the place of who asks too early": (
            "when mine > at and (wait ->> 'token')::bigint <> fencing_token then",
            "when false then",
        ),
        "counts several takes of a run as one that has waited": (
            "case when last > at then least(mine, moment) else moment end",
            "moment",
        ),
        "does not come at once": ("greatest(missing / rate, 0.1)", "missing / rate"),
    },
    "write_budget": {
        "keeps what is declared": ("coalesce(write_budget.declared, was.declared)", "coalesce(write_budget.declared, '{}')"),
        "keeps what people have set": (
            "coalesce(write_budget.override, was.override)",
            "coalesce(write_budget.override, '{}')",
        ),
        "lets people win": ("wanted := by_code || by_people;", "wanted := by_people || by_code;"),
        "forgets what nobody wants": ("if wanted = '{}' then", "if false then"),
        "keeps who has set it": (
            " and (was.override <> by_people or was.override = '{}')",
            "",
        ),
        "keeps what is in it": (
            """faultline.refilled(
          b.tokens, b.refilled_at, faultline.rate_of(b.effective), (b.effective ->> 'burst')::double precision, at
        )""",
            "null",
        ),
        "forgets the moments of the old rate": (" set reserved_until = at, next_job = null,", " set next_job = null,"),
        "says since when more may be taken": (", raised_at = at where", " where"),
        "says whether the code changed it": ("'by_code', write_budget.override is null", "'by_code', true"),
    },
    "checked_budget": {
        "wants a rate": ("coalesce(jsonb_typeof(fields -> 'rate'), 'null') = 'null' or ", ""),
        "wants nothing else": (" or fields ? 'concurrency' then", " then"),
    },
    "declare_budget": {
        "holds up nobody": ("b.declared = wanted)", "false)"),
    },
}
