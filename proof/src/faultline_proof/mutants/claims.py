"""The guards of what comes out of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

GUARDS: Guards = {
    "claim": {
        "wants an owner": "claim.owner is null or ",
        "wants an owner of sane length": " or length(claim.owner) not between 1 and 200",
        "grants nothing of a paused queue": ("if known_queue.paused_at is not null then", "if false then"),
        "grants of every other queue": (
            "faultline.queues q where q.name = claim.queue;",
            "faultline.queues q order by q.paused_at limit 1;",
        ),
        "takes nothing when asked for nothing": ("coalesce(claim.max_jobs, 0)", "claim.max_jobs"),
        "takes at most 10,000 jobs": ("least(coalesce(claim.max_jobs, 0), 10000)", "coalesce(claim.max_jobs, 0)"),
        "takes no more than it was asked for": ("remaining := remaining - claimed;", "null;"),
        "finds priorities that the caller does not know": ("coalesce(claim.priorities[next_known], 32767)", "-32768"),
        "finds them in front of those that it knows": ("coalesce(claim.priorities[next_known], 32767)", "32767"),
        "finds them between those that it knows": ("claim.priorities[next_known], 32767", "claim.priorities[1], 32767"),
        "takes the most urgent first": ("    order by j.priority\n", "    order by j.priority desc\n"),
        "takes the longest due first": ("order by r.next_run_at, r.id", "order by r.next_run_at desc, r.id"),
        "keeps the order of one moment": ("order by r.next_run_at, r.id", "order by r.next_run_at, r.id desc"),
        "starts where the live work starts": "          and (r.next_run_at, r.id) >= (lower_bound, lower_id)\n",
        "starts within one moment": ("(r.next_run_at, r.id) >= (lower_bound, lower_id)", "r.next_run_at >= lower_bound"),
        "starts with the moment where no id is given": (
            "coalesce(claim.lower_ids[next_known], '00000000-0000-0000-0000-000000000000')",
            "claim.lower_ids[next_known]",
        ),
        "knows of no bound where the caller gave none": ("      lower_bound := '-infinity';\n", "      null;\n"),
        "lets delayed jobs wait": "          and r.next_run_at <= due\n",
        "keeps the queues apart": ("where r.queue = claim.queue\n          and", "where"),
        "takes waiting jobs only": "          and r.state = 'queued'\n",
        "takes turns": ("    perform faultline.lock_large_claim(claim.queue);\n", "    null;\n"),
        "takes no turns for a few": ("if remaining > 20 then", "if remaining > 0 then"),
        "sees time go on in a loop": ("due := faultline.clock();", "due := faultline.now();"),
        "locks the rows": "        for update skip locked\n",
        "passes over locked rows": ("for update skip locked", "for update"),
        "names its owner": ("lease_owner = claim.owner", "lease_owner = 'w'"),
        "stores since when": ("claimed_at = due", "claimed_at = j.claimed_at"),
        "grants the job's own lease": ("make_interval(secs => j.lease_seconds)", "interval '30 seconds'"),
        "raises the token": (
            "greatest(j.fencing_token, (select s.token_floor from faultline.settings s)) + 1",
            "j.fencing_token",
        ),
        "grants no token below the floor": (
            "greatest(j.fencing_token, (select s.token_floor from faultline.settings s)) + 1",
            "j.fencing_token + 1",
        ),
        "grants no token of its job again": (
            "greatest(j.fencing_token, (select s.token_floor from faultline.settings s)) + 1",
            "(select s.token_floor from faultline.settings s) + 1",
        ),
        "reads the floor in the statement that grants": (
            "(select s.token_floor from faultline.settings s)",
            "read_before",
            (
                "  remaining integer := ",
                (
                    "  read_before constant bigint := (select s.token_floor from faultline.settings s);\n"
                    "  remaining integer := "
                ),
            ),
        ),
        "wants READ COMMITTED": ("current_setting('transaction_isolation') <> 'read committed'", "false"),
        "counts the attempt": ("attempt = j.attempt + 1::smallint", "attempt = greatest(j.attempt, 1::smallint)"),
        "forgets the mark of the last attempt": "          started = false,\n",
        "forgets the renewals of the last lease": "          renewals = 0,\n",
    },
    "pause": {
        "keeps the time of the first": ("coalesce(q.paused_at, excluded.paused_at)", "excluded.paused_at"),
    },
    "resume": {
        "wakes the sleeping": "  perform faultline.wake(resume.queue, -32768, '1970-01-01 00:00:00+00');\n",
        "resumes the named queue only": ("paused_by = null where q.name = resume.queue;", "paused_by = null;"),
    },
    "due": {
        "names what is due and nothing else": "          and j.next_run_at <= at\n",
        "walks all priorities": ("      previous := level;\n", "      exit;\n"),
        "starts where the live work starts": "          and (j.next_run_at, j.id) >= (lower_bound, lower_id)\n",
        "starts within one moment": ("(j.next_run_at, j.id) >= (lower_bound, lower_id)", "j.next_run_at >= lower_bound"),
        "knows of no bound where the caller gave none": ("        lower_bound := '-infinity';\n", "        null;\n"),
        "looks between the priorities that the caller knows": (
            "j.priority < case when is_known then due.priorities[next_known] else 32767 end",
            "j.priority < case when is_known then -32768 else 32767 end",
        ),
        "steps over no dead rows on its way to a priority": (
            "j.priority < case when is_known then due.priorities[next_known] else 32767 end",
            "j.priority < 32767",
        ),
        "finds the bounds of the next queue": (
            "    while due.bound_queues[next_known] = wanted loop\n      next_known := next_known + 1;\n    end loop;\n",
            "",
        ),
        "starts with the first moment where none is given": (
            "coalesce(due.lower_bounds[next_known], '-infinity')",
            "due.lower_bounds[next_known]",
        ),
        "starts with the moment where no id is given": (
            "coalesce(due.lower_ids[next_known], '00000000-0000-0000-0000-000000000000')",
            "due.lower_ids[next_known]",
        ),
        "keeps the bounds of queues apart": ("coalesce(due.bound_queues[next_known] = wanted, false)", "true"),
        "names no paused queue": ("and q.paused_at is not null", "and false"),
        "looks at its queue alone": (
            "      where j.queue = wanted\n        and",
            "      where",
            ("        where j.queue = wanted\n          and", "        where"),
        ),
    },
    "lock_large_claim": {
        "takes turns within its queue": ("faultline.claim_lock(lock_large_claim.queue)", "faultline.claim_lock('')"),
        "does not wait again at once": "  if in_vain[1] > seconds then\n    return;\n  end if;\n",
        "waits longer and longer before it asks again": ("coalesce(in_vain[2] * 2, 1)", "1"),
        "does not stop asking for good": ("coalesce(in_vain[2] * 2, 1), 32)", "coalesce(in_vain[2] * 2, 1), 3200)"),
        "asks as before once it got its turn": (
            "      perform set_config('faultline.claim_lock_pause', '', false);\n",
            "      null;\n",
        ),
        "ignores what is no pair of numbers": ("^[0-9]{1,12}(?:[.][0-9]+)? [0-9]{1,4}$", "^.+$"),
        "waits a moment for its turn": ("perform set_config('lock_timeout', '250ms', true)", "null"),
        "goes on without its turn": (
            "  exception when lock_not_available or deadlock_detected then\n"
            "    perform set_config('faultline.claim_lock_pause', seconds + pause || ' ' || pause, false);\n"
        ),
        "keeps the caller's patience": "    perform set_config('lock_timeout', patience, true);\n",
    },
    "needs_start_record": {
        "has a last attempt marked": "attempt >= max_attempts or ",
        "has attempts after a crash marked": " or reaps > 0",
    },
}
