"""The guards of limits: what a claim counts, who may change them, and budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

GUARDS: Guards = {
    "claim": {
        "goes by the limits of its queue": ("if known_queue.limited then", "if false then"),
        "gives one at a time to who may hold jobs ahead": (
            "case when claim.limits then remaining else least(remaining, 1) end",
            "remaining",
        ),
        "waits for the disk unless its caller syncs it": ("if claim.syncs then", "if true then"),
        "does not keep others waiting for the disk": ("      perform faultline.commit_lazily();", "      null;"),
    },
    "commit_lazily": {
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
    "claim_within": {
        "wants READ COMMITTED": "  perform faultline.read_committed('a claim of a queue with limits');\n",
        "ends a claim that is left open": (
            "    perform set_config('idle_in_transaction_session_timeout', '5s', true);\n",
            "    null;\n",
        ),
        "lets due jobs arrive": (
            "      perform faultline.let_arrive(claim_within.queue, claim_within.shards, due);\n",
            "      null;\n",
        ),
        "hears what happened": (
            "      shard := part.shard;\n      -- Again",
            "      -- Again",
        ),
        "hears of few groups for a few jobs": ("greatest(500, 2 * claim_within.max_jobs)", "20000"),
        "hears of as many groups as it grants jobs": ("greatest(500, 2 * claim_within.max_jobs)", "500"),
        "hears on where nothing can be granted": ("exit when not part.more or", "exit when true or"),
        "grants nothing of a queue that was paused meanwhile": (" and q.paused_at is null;", ";"),
        "lets groups be ready whose time has come": "      perform faultline.let_ready(shard, due);\n",
        "grants no more than the queue may": ("room := least(part.room, remaining)", "room := remaining"),
        "takes those that kept a permit": ("      if waits.kept then\n", "      if false then\n"),
        "leaves half to others than heads": (
            "case when divided then (room + (random() < 0.5)::integer) / 2 else room end",
            "room",
        ),
        "knows how many shards there are": (" and q.shards = claim_within.shards and", " and"),
        "leaves half to jobs of no group": (
            "case when mixed then (room - cardinality(ctids) + (random() < 0.5)::integer) / 2 else",
            "case when false then 0 else",
        ),
        "takes jobs of no group where groups wait too": (
            "if mixed or not (waits.ready or waits.kept) then",
            "if not (waits.ready or waits.kept) then",
        ),
        "takes jobs of no group": (
            (
                "        ctids := ctids || faultline.pick_plain(claim_within.queue, claim_within.flows, due,"
                " room - cardinality(ctids));\n"
            ),
            "        null;\n",
        ),
        "counts every grant": ("case when j.group_key is null then 1 else 3 end | (shard.shard << 2)", "null::smallint"),
        "counts the group's permit": ("case when j.group_key is null then 1 else 3 end", "1"),
        "gives a job its true time back": ("coalesce(j.group_at, j.next_run_at)", "j.next_run_at"),
        "adds up what it granted": "      shard.holding := shard.holding + cardinality(ctids);\n",
        "takes tokens": "      shard.tokens := shard.tokens - cardinality(ctids);\n",
        "takes no more than it was asked for": "      remaining := remaining - cardinality(ctids);\n",
        "stores what it counted": "    perform faultline.save_shard(before, shard, due);\n",
    },
    "lock_shard": {
        "goes past a shard that somebody holds": (
            "    limit 1\n    for update skip locked;",
            "    limit 1\n    for update;",
        ),
        "waits a moment": ("    perform set_config('lock_timeout', '250ms', true);\n", ""),
        "keeps the caller's patience": "    perform set_config('lock_timeout', patience, true);\n",
    },
    "pick_groups": {
        "keeps within the group's limit": ("l.cap - g.holding, ", ""),
        "keeps within the group's rate": ("coalesce(floor(t.tokens_now), remaining)", "remaining"),
        "serves by what groups hold": ("order by (l.holding + n.nth - 1) / l.weight, ", "order by "),
        "gives one each only where nobody is owed two": (
            " and max(l.holding / l.weight) < min((l.holding + 1) / l.weight) as one_each",
            " as one_each",
        ),
        "reads no turns that were served": (" and g.turn >= shard.turn\n", "\n"),
        "sees groups that hold nothing": ("g.load = 0 and g.turn >= shard.turn", "g.load < 0"),
        "sees groups that hold something": ("g.ready and g.load > 0\n", "g.ready and g.load < 0\n"),
        "moves on where groups come in": (
            "    shard.entry := greatest(shard.entry, shard.turn) + cardinality(served.ctids) * 1e-6;\n",
            "",
        ),
        "moves the turn by the weight": ("turn = j.turn + j.jobs / j.weight", "turn = j.turn + j.jobs"),
        "moves no head past a locked row": (
            "j.are_first and pick_groups.flows then coalesce(j.last_id",
            "true then coalesce(j.last_id",
            ("j.are_first and pick_groups.flows then coalesce(j.last_at", "true then coalesce(j.last_at"),
        ),
        "looks again at a locked row": (
            "s.want = 0 or not f.are_first or coalesce",
            "s.want = 0 or coalesce",
        ),
        "picks no job twice": (
            "still in its group.\n            and (r.priority, r.group_at, r.id) > (a.",
            "still in its group.\n            and (r.priority, r.group_at, r.id) >= (a.",
        ),
        "passes over what has expired": (
            "ctids))\n            and (r.expires_at is null or r.expires_at > pick_groups.due or r.fencing_token > 0)\n",
            "ctids))\n",
        ),
        "picks no job twice for a caller that knows no flows": (" and r.ctid <> all (pick_groups.ctids))", ")"),
        "sees when a group is empty that has no flows": (
            "coalesce(s.waiting, s.seen) > s.taken as has_more",
            "coalesce(s.waiting, s.seen) > s.taken or not pick_groups.flows as has_more",
        ),
        "puts off what its caller may not have": (
            " or s.taken < s.want and s.waiting > s.taken as is_barred",
            " as is_barred",
        ),
        "keeps what its caller may not have": ("coalesce(s.waiting, s.seen) >", "s.seen >"),
        "waits for the next token": (
            "pick_groups.due + make_interval(secs => (1 - j.tokens_left) / j.rate)",
            "pick_groups.due",
        ),
    },
    "pick_behind": {
        "passes over what somebody has locked": (
            "    limit pick_behind.most\n    for update of r skip locked\n",
            "    limit 0\n",
        ),
        "keeps within what the group may have": (
            "    limit pick_behind.most\n    for update",
            "    limit pick_behind.most + 1\n    for update",
        ),
        "passes nothing in a group that keeps its order": ("::boolean then", "::boolean and false then"),
        "leaves jobs of flows to those who know them": ("(pick_behind.flows or r.flow_id is null)", "true"),
        "passes over what has expired": (
            "(r.expires_at is null or r.expires_at > pick_behind.due or r.fencing_token > 0)",
            "true",
        ),
        "picks no job twice": "        and r.ctid <> all (pick_behind.picked)\n",
    },
    "pick_kept": {
        "takes one of a group": ("k.nth = 1 and (", "("),
        "takes none beside one that runs": ("(coalesce(g.holding, 1) <= 1 or", "(true or"),
        "takes a token of the group": (
            "n.rate is not null and n.tokens < 1",
            "false",
            ("j.rate is null or j.tokens >= 1", "true"),
        ),
    },
    "check_shards": {
        "wants a job of the burst for each shard": ("b.burst < q.shards", "false"),
        "looks at what is declared as well": (
            "least((l.effective ->> 'burst')::double precision, (l.declared ->> 'burst')::double precision)",
            "(l.effective ->> 'burst')::double precision",
        ),
    },
    "declare_queue": {
        "keeps the burst above the shards": "  perform faultline.check_shards(declare_queue.queue);\n",
        "divides the permits": "  perform faultline.divide(declare_queue.queue);\n",
    },
    "set_limit": {
        "keeps the burst above the shards": "  perform faultline.check_shards(set_limit.queue);\n",
        "divides the permits": "  perform faultline.divide(set_limit.queue);\n",
    },
    "write_limit": {
        "lets those look again who waited": (
            "    perform faultline.ease_groups(write_limit.queue, write_limit.group_key, coalesce(was.effective, '{}'));\n",
            "    null;\n",
        ),
    },
    "ease_groups": {
        "lets those look again who waited for a permit": (
            "or g.more and not g.ready and g.not_before is null and g.holding < coalesce(",
            "or g.more and not g.ready and g.not_before is null and g.holding < least(-1, ",
        ),
        "lets those look again who waited for a token": ("g.not_before is not null and faster\n", "false\n"),
        "weighs anew": (" or reweighed and (o.more or o.holding > 0)", ""),
        "begins with the turns again": ("case when not reweighed then g.turn end", "g.turn"),
        "puts who may go on behind those who wait": (
            "(select s.entry from",
            "(select null::double precision from",
        ),
    },
    "let_ready": {
        "puts who waited behind those who wait": ("greatest(g.turn, shard.entry)", "g.turn"),
    },
    "recount_queue": {
        "puts who is counted anew behind those who wait": (
            "(select s.entry from",
            "(select g.turn from",
        ),
        "counts what was given back to a shard that is gone": ("e.shard % number as shard", "e.shard"),
    },
    "reshard": {
        "takes groups as far as their shards": ("turn = greatest(g.turn, furthest)", "turn = g.turn"),
    },
    "fold": {
        "does not keep claims waiting for the disk": ("  perform faultline.commit_lazily();", "  null;"),
        "takes few queues at a time": (" order by random() limit 50)", ")"),
        "takes others each time": ("order by random() limit 50", "order by q.name limit 50"),
        "lets jobs give way": ("    perform faultline.give_way();\n", "    null;\n"),
    },
    "save_shard": {
        "stores where groups come in": ("      entry = is_now.entry\n", "      entry = s.entry\n"),
    },
    "let_arrive": {
        "takes no more than a thousand": ("    limit 1000\n", "    limit 1000000\n"),
        "leaves those that kept a permit": "      and r.counted is null\n",
    },
    "is_miscounted": {
        "knows what was given back to a shard that is gone": ("e.shard % number as shard", "e.shard"),
        "sees jobs that run without a permit": ("select from permits p where p.counted is null", "select where false"),
        "looks at what the queue holds": (
            "group by k.shard\n      having sum(k.holding) <> 0",
            "group by k.shard\n      having false",
        ),
        "looks at what groups hold": (
            "group by k.group_key\n      having sum(k.holding) <> 0",
            "group by k.group_key\n      having false",
        ),
    },
    "fold_queue": {
        "hears everything once a minute": ("      shard.seen_to := '0';\n", "      null;\n"),
        "counts what is wrong anew": ("      perform faultline.recount_queue(fold_queue.queue);\n", "      null;\n"),
        "lends": "    perform faultline.lend(fold_queue.queue, fold_queue.number);\n",
        "keeps groups whose tokens are due": (
            "(each_group ->> 'burst')::double precision / faultline.rate_of(each_group), 0)",
            "0, 0)",
        ),
        "keeps groups whose own tokens are due": ("(not have_own or i.epoch < coalesce", "(true or i.epoch < coalesce"),
        "knows how many shards there are": (" and q.shards = fold_queue.number) then\n      return", ") then\n      return"),
        "hears what was written for shards that are gone": (
            "where e.queue = fold_queue.queue and e.shard >= fold_queue.number\n",
            "where false\n",
        ),
        "takes no time of a clock that was ahead": ("set ready = g.more, not_before = null", "set ready = g.ready"),
        "puts right who stands before the turn": ("      set turn = shard.entry\n", "      set turn = g.turn\n"),
    },
    "lend": {
        "takes turns": ("(s.shard + second) % lend.number as nth", "s.shard as nth"),
        "gives no more than is free": ("least(t.target - t.holding, t.free - t.before)", "t.target - t.holding"),
        "takes back what is more than a part": ("when t.holding >= t.target then t.target else", "when false then 0 else"),
    },
    "limit_queue": {
        "gives new shards no tokens": ("case when was then 0 end", "null::double precision"),
    },
    "move_strays": {
        "finds those that kept a permit": (
            "  set counted = 2 | (faultline.shard_of(j.group_key, move_strays.number) << 2)\n",
            "  set counted = j.counted\n",
        ),
        "waits for no submitter": ("    for update skip locked\n", "    for update\n"),
    },
    "reset_limit": {
        "divides the permits": "  perform faultline.divide(reset_limit.queue);\n",
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
            "if not faultline.hold(take_budget.job_id, take_budget.fencing_token, take_budget.owner) then",
            "if false then",
        ),
        "takes once": ("(memory ->> 'number')::integer = take_budget.number", "false"),
        "takes again in a later run": ("(memory ->> 'token')::bigint = take_budget.fencing_token", "true"),
        "takes one after another": ("where b.name = take_budget.budget for update;", "where b.name = take_budget.budget;"),
        "says what can never be had": ("if take_budget.cost > burst then", "if false then"),
        "knows no budget that is not there": ("if bucket.name is null then", "if false then"),
        "forgets the moments of a clock that was ahead": ("    bucket.line_until := at;\n", "    null;\n"),
        "forgets who does not come": ("if bucket.next_until <= at or", "if false or"),
        "forgets who has ended": ("bucket.next_job <> take_budget.job_id and not exists (", "false and not exists ("),
        "takes what is there": ("if bucket.tokens >= take_budget.cost + kept\n", "if bucket.tokens >= kept\n"),
        "keeps something for the next one": (
            "kept := case when bucket.next_job <> take_budget.job_id then bucket.next_cost else 0 end;",
            "kept := 0;",
        ),
        "lets those go first who have waited": (
            "and (has_waited or bucket.line_until <= at or bucket.tokens >= burst)",
            "and true",
        ),
        "lets others have what would be lost": (" or bucket.tokens >= burst)", ")"),
        "knows who has waited": ("(wait ->> 'from')::timestamptz <= at, false)", "false, false)"),
        "takes it away": "    bucket.tokens := bucket.tokens - take_budget.cost;\n",
        "fills what it has since": (
            "bucket.refilled_at := faultline.refill_moment(bucket.refilled_at, at);",
            "bucket.refilled_at := coalesce(bucket.refilled_at, at);",
        ),
        "remembers what it took": (
            "    memory := memory || jsonb_build_object('token', take_budget.fencing_token, 'number', take_budget.number);\n"
        ),
    },
    "line_up": {
        "puts one behind another": (
            "greatest(extract(epoch from nullif(bucket.line_until, '-infinity') - at) * rate, kept - bucket.tokens)",
            "kept - bucket.tokens",
        ),
        "remembers the last moment": ("  bucket.line_until := greatest(bucket.line_until, moment);\n", ""),
        "serves who has waited longest": (
            "(since, line_up.job_id) < (bucket.next_since, bucket.next_job)",
            "false",
        ),
        "has one next, until it is served": (
            "(since, line_up.job_id) < (bucket.next_since, bucket.next_job)",
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
        "forgets the moments of the old rate": (" set line_until = at, next_job = null,", " set next_job = null,"),
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
