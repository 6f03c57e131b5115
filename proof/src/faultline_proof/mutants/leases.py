"""The guards of what is written under a lease."""

from __future__ import annotations

from faultline_proof.mutants.texts import Cut

_BATCH = [
    cut
    for verb in ("renew", "fail", "release", "mark_started")
    for cut in (
        Cut(verb, "compares the token", "j.fencing_token = l.token and "),
        Cut(verb, "compares the owner", " and j.lease_owner = l.owner"),
        Cut(verb, "looks up one job after the other", "any (array[l.job_id])", "l.job_id"),
        Cut(verb, "locks the row", "    for update of j skip locked\n"),
        Cut(verb, "passes over locked rows", " skip locked\n", "\n"),
        Cut(verb, "says for which leases it did nothing", "if coalesce(cardinality(done), 0) <", "if false and 0 <"),
    )
]

_COMPLETE = [
    Cut("complete", "refuses results that are no array", "jsonb_typeof(complete.results) <> 'array' or "),
    Cut(
        "complete",
        "refuses more or fewer results than leases",
        " or jsonb_array_length(complete.results) <> cardinality(complete.job_ids)",
    ),
    Cut("complete", "gives each job its own result", "(f.place::integer - 1)", "0"),
    Cut("complete", "enters the token", "f.id, f.fencing_token,", "f.id, 7,"),
    Cut("complete", "enters the owner", "f.lease_owner, f.queue", "'w', f.queue"),
    Cut("complete", "enters the key", "f.task, f.idempotency_key,", "f.task, null,"),
    Cut("complete", "forgets arguments that are not to be kept", "case when f.keep_args then f.args end", "f.args"),
    Cut("complete", "looks up one job after the other", "where j.id = any (array[l.job_id])", "where j.id = l.job_id"),
    Cut("complete", "compares the token", "j.fencing_token = l.token and "),
    Cut("complete", "compares the owner", " and j.lease_owner = l.owner"),
    Cut("complete", "waits for a locked row for a moment only", "'1ms'", "'0'"),
    Cut("complete", "finds out which rows are locked", "        for update of j skip locked\n"),
    Cut("complete", "waits for nobody while it finds out", " skip locked\n", "\n"),
    Cut("complete", "leaves out the locked rows", "          and (free is null or l.place = any (free))\n"),
    Cut("complete", "gives the session its patience back", "perform set_config('lock_timeout', patience, true);", ""),
    Cut("complete", "has the session's patience the second time", "      if free is null then\n", "      if true then\n"),
    Cut("complete", "ends when it can wait no longer", "      if free is not null then\n        raise;\n      end if;\n"),
    Cut("complete", "says for which leases it did nothing", "if coalesce(cardinality(done), 0) <", "if false and 0 <"),
    Cut(
        "complete",
        "takes the job off the open ones",
        "        delete from faultline.open_jobs j\n        using unnest(",
        "        select j.*, l.place from faultline.open_jobs j, unnest(",
        also=("        returning j.*, l.place\n", ""),
    ),
]

_FAIL = [
    Cut("fail", "refuses failures that are no array", "jsonb_typeof(fail.failures) is distinct from 'array'", "false"),
    Cut(
        "fail",
        "refuses more or fewer failures than leases",
        "jsonb_array_length(fail.failures) <> cardinality(fail.job_ids)",
        "false",
    ),
    Cut("fail", "refuses a failure without an ending", 'f."then" is null or '),
    Cut("fail", "refuses an unknown ending", "f.\"then\" not in ('retry', 'fail', 'cancel') or "),
    Cut("fail", "refuses a delay that makes no sense", " or f.delay_seconds not between 0 and 31536000"),
    Cut(
        "fail",
        "ends the job with its last attempt",
        "case when j.attempt < j.max_attempts then 'queued' else 'failed' end",
        "'queued'",
    ),
    Cut("fail", "cancels when told so", "when 'cancel' then 'cancelled'", "when 'cancel' then 'failed'"),
    Cut(
        "fail",
        "fails when told so",
        "        else 'failed'\n      end as state",
        "        else 'queued'\n      end as state",
    ),
    *(
        Cut(
            "fail",
            f"gives each job its own {word}",
            f"fail.failures -> (l.place::integer - 1) ->> '{word}'",
            f"fail.failures -> 0 ->> '{word}'",
        )
        for word in ("then", "error", "delay_seconds")
    ),
    Cut("fail", "clears the owner", "        lease_owner = null,\n"),
    Cut("fail", "clears the expiry", "        lease_expires_at = null,\n"),
    Cut(
        "fail",
        "waits before the next attempt",
        "faultline.clock() + make_interval(secs => held.delay_seconds)",
        "faultline.clock()",
    ),
    Cut("backoff", "waits twice as long each time", "2 ^ least(attempt, 12)", "2"),
    Cut("backoff", "waits no longer than an hour", "least(3600, 2 ^ least(attempt, 12))", "2 ^ least(attempt, 12)"),
    Cut(
        "fail",
        "cuts an endless error",
        "left(fail.failures -> (l.place::integer - 1) ->> 'error', 65536)",
        "fail.failures -> (l.place::integer - 1) ->> 'error'",
    ),
    Cut("fail", "keeps the error with the job", "        last_error = held.error\n", "        last_error = null\n"),
    Cut("fail", "is told by the journal", "    from ended e\n    order by e.id", "    from ended e\n    where false"),
    Cut(
        "fail",
        "tells the cancelled from the failed",
        "case e.state when 'cancelled' then 'cancelled' else 'attempt_failed' end",
        "'attempt_failed'",
    ),
]

_RELEASE = [
    Cut("release", "refuses a delay that makes no sense", "d.seconds not between 0 and 31536000", "false"),
    Cut("release", "gives each job its own delay", "release.delays_seconds[l.place]", "release.delays_seconds[1]"),
    Cut("release", "clears the owner", "        lease_owner = null,\n"),
    Cut("release", "clears the expiry", "        lease_expires_at = null,\n"),
    Cut("release", "gives the attempt back", "        attempt = j.attempt - 1::smallint,\n"),
    Cut(
        "release",
        "keeps the place in the queue",
        "when held.delay_seconds is null then j.next_run_at",
        "when held.delay_seconds is null then faultline.clock()",
    ),
    Cut(
        "release",
        "lets a snoozed job sleep",
        "else faultline.clock() + make_interval(secs => held.delay_seconds)",
        "else j.next_run_at",
    ),
    Cut("release", "wakes workers that have claimed past the job", "  perform faultline.wake_for(ids);\n"),
]

_RENEW = [
    Cut("renew", "counts from now on", "faultline.clock() + make_interval", "j.lease_expires_at + make_interval"),
    Cut("renew", "grants no more than the job's own lease", "make_interval(secs => j.lease_seconds)", "interval '1 day'"),
    Cut("renew", "is counted", "renewals = j.renewals + 1", "renewals = j.renewals"),
]

_MARK_STARTED = [Cut("mark_started", "sets the mark", "set started = true", "set started = j.started")]

_FENCE = [
    Cut("fence", "compares the token", " and j.fencing_token = fence.fencing_token"),
    Cut("fence", "compares the owner", " and j.lease_owner = fence.owner"),
    Cut("fence", "locks the row", "\n  for update;", ";"),
    Cut(
        "fence",
        "compares under the lock",
        "\n  for update;",
        ";\n  perform from faultline.open_jobs j where j.id = fence.job_id for update;",
    ),
    Cut("fence", "refuses an expired lease", "if found and lease_expires_at > faultline.clock() then", "if found then"),
    Cut(
        "fence",
        "asks for the time after the lock",
        "lease_expires_at > faultline.clock()",
        "lease_expires_at > faultline.now()",
    ),
    Cut(
        "fence",
        "tells an expired lease from a held one",
        "case v.reason when 'held' then 'lease_expired' else v.reason end",
        "v.reason",
    ),
    Cut(
        "same_transaction",
        "notices that the transaction is another one",
        "pg_current_xact_id_if_assigned() is distinct from same_transaction.fenced_in",
        "pg_current_xact_id_if_assigned() is null",
    ),
    Cut(
        "same_transaction",
        "notices that there is no transaction any more",
        "is distinct from same_transaction.fenced_in then",
        "<> same_transaction.fenced_in then",
    ),
    Cut("hold", "compares the token", "and j.fencing_token = hold.fencing_token "),
    Cut("hold", "compares the owner", " and j.lease_owner = hold.owner"),
    Cut("hold", "locks the row", "\n  for update;", ";"),
    Cut(
        "hold",
        "compares under the lock",
        "\n  for update;\n  return found;",
        ";\n  if found then\n    perform from faultline.open_jobs j where j.id = hold.job_id for update;\n  end if;\n"
        "  return found;",
    ),
    Cut("record_refusal", "compares the token", "\n    and j.fencing_token = record_refusal.fencing_token"),
    Cut("record_refusal", "compares the owner", "\n    and j.lease_owner = record_refusal.owner"),
    Cut("record_refusal", "smears no good lease", "  if expired then", "  if expired is not null then"),
    Cut("record_refusal", "records an expired lease", "  if expired then", "  if false then"),
    Cut("record_refusal", "records a lost lease", "elsif expired is null then", "elsif false then"),
]

_STEP = [
    Cut(
        "step",
        "is written by the holder only",
        "if faultline.hold(step.job_id, step.fencing_token, step.owner) then",
        "if true then",
    ),
    Cut("step", "leaves a remembered step as it is", "do nothing", "do update set result = excluded.result"),
    Cut("step", "says when it did nothing", "    return query\n", "    perform 1; return; return query\n"),
    Cut("recall", "asks for this job", "s.job_id = recall.job_id and "),
    Cut("recall", "asks for this step", " and s.name = recall.name"),
    Cut(
        "progress",
        "is written by the holder only",
        "if faultline.hold(progress.job_id, progress.fencing_token, progress.owner) then",
        "if true then",
    ),
    Cut("progress", "is no place for much", "octet_length(progress.progress::text) > 65536", "false"),
    Cut("progress", "says when it did nothing", "    return query\n", "    perform 1; return; return query\n"),
]

_REFUSE = [
    Cut("refuse", "looks up one job after the other", "any (array[l.job_id])", "l.job_id"),
    Cut("refuse", "journals what it refuses", "      where g.reason <> 'busy'\n", "      where false\n"),
    Cut("refuse", "does not journal what is busy", "      where g.reason <> 'busy'\n"),
    Cut("refuse", "journals who was refused", "blocked', g.token, g.owner,", "blocked', g.token, null,"),
    Cut("refuse", "journals the token", "blocked', g.token, g.owner,", "blocked', null, g.owner,"),
    Cut("refuse", "journals the stale token", "'stale_token', g.token", "'stale_token', null"),
    Cut("refuse", "journals the current token", "'current_token', g.current_token", "'current_token', null"),
    Cut("refuse", "journals the reason", "'reason', g.reason", "'reason', null"),
    Cut("refuse", "journals the verb", "'verb', refuse.verb", "'verb', null"),
    Cut(
        "refuse",
        "tells the current token",
        "g.reason, g.current_token from judged g",
        "g.reason, null::bigint from judged g",
    ),
    Cut(
        "refuse",
        "tells whose lease it was",
        "g.owner, g.reason, g.current_token from judged g",
        "'', g.reason, g.current_token from judged g",
    ),
    Cut("refuse", "calls a held lease busy", "case v.reason when 'held' then 'busy' else v.reason end", "v.reason"),
    Cut("refuse", "leaves out what was done", "where l.place = any (refuse.done)", "where false"),
    Cut(
        "refuse",
        "looks at the whole lease",
        "select l.job_id, l.token, l.owner from leases l where l.place = any (refuse.done)",
        "select l.job_id, l.token, l.owner from leases l"
        " where l.job_id in (select x.job_id from leases x where x.place = any (refuse.done))",
    ),
    Cut(
        "refuse",
        "knows a completion that was sent twice",
        "refuse.verb in ('complete', 'renew')",
        "refuse.verb = 'renew'",
    ),
    Cut(
        "refuse",
        "knows a job that completed itself",
        "refuse.verb in ('complete', 'renew')",
        "refuse.verb = 'complete'",
    ),
    Cut("refuse", "forgives only a completion and a renewal", "refuse.verb in ('complete', 'renew')", "true"),
    Cut("refuse", "forgives only the token of the ledger", "and f.fencing_token = l.token "),
    Cut("refuse", "forgives only the owner of the ledger", " and f.owner = l.owner"),
    Cut("judge", "believes the ledger", "  order by k.state = 'succeeded' desc\n", "  order by k.state = 'succeeded'\n"),
    Cut(
        "judge", "compares the token", "when known.fencing_token is distinct from judge.fencing_token then 'token_mismatch'"
    ),
    Cut(
        "judge",
        "knows a lease without a token",
        "known.fencing_token is distinct from judge.fencing_token",
        "known.fencing_token <> judge.fencing_token",
    ),
    Cut(
        "judge",
        "compares the owner",
        "when known.owner is not null and known.owner is distinct from judge.owner then 'token_mismatch'",
    ),
    Cut("judge", "tells the current token", "current_token := known.fencing_token", "current_token := judge.fencing_token"),
    Cut("judge", "knows a lease without an owner", "known.owner is distinct from judge.owner", "known.owner <> judge.owner"),
    Cut(
        "judge", "knows that a job has ended", "when known.state in ('succeeded', 'failed', 'cancelled') then 'not_running'"
    ),
    Cut("judge", "knows that nobody holds the job", "when known.owner is null then 'lease_lost'"),
    Cut("judge", "knows that there is no such job", "when known.state is null then 'not_running'"),
    Cut("check_leases", "counts the tokens", "cardinality(job_ids) is distinct from cardinality(tokens)", "false"),
    Cut("check_leases", "counts the owners", "cardinality(job_ids) is distinct from cardinality(owners)", "false"),
    Cut("check_leases", "wants every id", "array_position(job_ids, null) is not null", "false"),
    Cut("check_leases", "wants every token", "array_position(tokens, null) is not null", "false"),
    Cut("check_leases", "wants every owner", "array_position(owners, null) is not null", "false"),
]

CUTS = [*_BATCH, *_COMPLETE, *_FAIL, *_RELEASE, *_RENEW, *_MARK_STARTED, *_FENCE, *_STEP, *_REFUSE]
