"""The guards of what is written under a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Change, Guards

BATCH: dict[str, Change] = {
    "compares the token": "j.fencing_token = l.token and ",
    "compares the owner": " and j.lease_owner = l.owner",
    "looks up one job after the other": ("any (array[l.job_id])", "l.job_id"),
    "locks the row": "    for update of j skip locked\n",
    "passes over locked rows": (" skip locked\n", "\n"),
    "says for which leases it did nothing": ("if coalesce(cardinality(done), 0) <", "if false and 0 <"),
}
_CALLS = "fail.failures -> (l.position::integer - 1) -> 'calls'"
GUARDS: Guards = {
    "complete": {
        "refuses results that are no array": "jsonb_typeof(complete.results) <> 'array' or ",
        "refuses more or fewer results than leases": (
            " or jsonb_array_length(complete.results) <> cardinality(complete.job_ids)",
            "",
        ),
        "gives each job its own result": ("(f.position::integer - 1)", "0"),
        "enters the token": ("f.id, f.fencing_token,", "f.id, 7,"),
        "enters the owner": ("f.lease_owner, f.queue", "'w', f.queue"),
        "enters the key": ("f.task, f.idempotency_key,", "f.task, null,"),
        "forgets arguments that are not to be kept": ("case when f.keep_args then f.args end", "f.args"),
        "looks up one job after the other": ("where j.id = any (array[l.job_id])", "where j.id = l.job_id"),
        "compares the token": "j.fencing_token = l.token and ",
        "compares the owner": " and j.lease_owner = l.owner",
        "waits for a locked row for a moment only": ("'1ms'", "'0'"),
        "finds out which rows are locked": "        for update of j skip locked\n",
        "waits for nobody while it finds out": (" skip locked\n", "\n"),
        "leaves out the locked rows": "          and (free is null or l.position = any (free))\n",
        "gives the session its patience back": "perform set_config('lock_timeout', patience, true);",
        "has the session's patience the second time": ("      if free is null then\n", "      if true then\n"),
        "ends when it can wait no longer": "      if free is not null then\n        raise;\n      end if;\n",
        "says for which leases it did nothing": ("if coalesce(cardinality(done), 0) <", "if false and 0 <"),
        "takes the job off the open ones": (
            "        delete from faultline.open_jobs j\n        using unnest(",
            "        select j.*, l.position from faultline.open_jobs j, unnest(",
            ("        returning j.*, l.position\n", ""),
        ),
    },
    "fail": {
        **BATCH,
        "takes null for no calls": (f"nullif({_CALLS}, 'null')", _CALLS),
        "ends the job with its last attempt": (
            "case when j.attempt < j.max_attempts then 'queued' else 'failed' end",
            "'queued'",
        ),
        "cancels when asked to": ("when 'cancel' then 'cancelled'", "when 'cancel' then 'failed'"),
        "fails when asked to": ("        else 'failed'\n      end as state", "        else 'queued'\n      end as state"),
        **{
            f"gives each job its own {word}": (
                f"fail.failures -> (l.position::integer - 1) ->> '{word}'",
                f"fail.failures -> 0 ->> '{word}'",
            )
            for word in ("then", "error", "delay_seconds")
        },
        "clears the owner": "        lease_owner = null,\n",
        "clears the expiry": "        lease_expires_at = null,\n",
        "waits before the next attempt": (
            "faultline.clock() + make_interval(secs => held.delay_seconds)",
            "faultline.clock()",
        ),
        "cuts an endless error": (
            "left(fail.failures -> (l.position::integer - 1) ->> 'error', 65536)",
            "fail.failures -> (l.position::integer - 1) ->> 'error'",
        ),
        "keeps the error with the job": ("        last_error = held.error\n", "        last_error = null\n"),
        "is recorded in the journal": ("    from ended e\n    order by e.id", "    from ended e\n    where false"),
        "tells the cancelled from the failed": (
            "case e.state when 'cancelled' then 'cancelled' else 'attempt_failed' end",
            "'attempt_failed'",
        ),
    },
    "backoff": {
        "waits twice as long each time": ("2 ^ least(attempt, 12)", "2"),
        "waits no longer than an hour": ("least(3600, 2 ^ least(attempt, 12))", "2 ^ least(attempt, 12)"),
    },
    "release": {
        **BATCH,
        "refuses an invalid delay": ("d.seconds not between 0 and 31536000", "false"),
        "gives each job its own delay": ("release.delays_seconds[l.position]", "release.delays_seconds[1]"),
        "clears the owner": "        lease_owner = null,\n",
        "clears the expiry": "        lease_expires_at = null,\n",
        "gives the attempt back": "        attempt = j.attempt - 1::smallint,\n",
        "keeps the position in the queue": (
            "when held.delay_seconds is null then j.next_run_at",
            "when held.delay_seconds is null then faultline.clock()",
        ),
        "lets a snoozed job sleep": (
            "else faultline.clock() + make_interval(secs => held.delay_seconds)",
            "else j.next_run_at",
        ),
        "wakes workers that have claimed past the job": "  perform faultline.wake_for(ids);\n",
    },
    "renew": {
        **BATCH,
        "counts from now on": ("faultline.clock() + make_interval", "j.lease_expires_at + make_interval"),
        "grants no more than the job's own lease": ("make_interval(secs => j.lease_seconds)", "interval '1 day'"),
        "is counted": ("renewals = j.renewals + 1", "renewals = j.renewals"),
    },
    "record_start": {
        **BATCH,
        "sets the mark": ("set started = true", "set started = j.started"),
    },
    "fence": {
        "compares the token": " and j.fencing_token = fence.fencing_token",
        "compares the owner": " and j.lease_owner = fence.owner",
        "locks the row": ("\n  for update;", ";"),
        "compares under the lock": (
            "\n  for update;",
            ";\n  perform from faultline.open_jobs j where j.id = fence.job_id for update;",
        ),
        "refuses an expired lease": ("if found and lease_expires_at > faultline.clock() then", "if found then"),
        "asks for the time after the lock": (
            "lease_expires_at > faultline.clock()",
            "lease_expires_at > faultline.now()",
        ),
        "tells an expired lease from a held one": (
            "case v.reason when 'held' then 'lease_expired' else v.reason end",
            "v.reason",
        ),
    },
    "same_transaction": {
        "notices that the transaction is another one": (
            "pg_current_xact_id_if_assigned() is distinct from same_transaction.fenced_in",
            "pg_current_xact_id_if_assigned() is null",
        ),
        "notices that there is no transaction any more": (
            "is distinct from same_transaction.fenced_in then",
            "<> same_transaction.fenced_in then",
        ),
    },
    "lock_lease": {
        "compares the token": "and j.fencing_token = lock_lease.fencing_token ",
        "compares the owner": " and j.lease_owner = lock_lease.owner",
        "locks the row": ("\n  for update;", ";"),
        "compares under the lock": (
            "\n  for update;\n  return found;",
            (
                ";\n  if found then\n    perform from faultline.open_jobs j where j.id = lock_lease.job_id for update;\n"
                "  end if;\n  return found;"
            ),
        ),
    },
    "record_refusal": {
        "compares the token": "\n    and j.fencing_token = record_refusal.fencing_token",
        "compares the owner": "\n    and j.lease_owner = record_refusal.owner",
        "smears no good lease": ("  if expired then", "  if expired is not null then"),
        "records an expired lease": ("  if expired then", "  if false then"),
        "records a lost lease": ("elsif expired is null then", "elsif false then"),
    },
    "step": {
        "is written by the holder only": (
            "if faultline.lock_lease(step.job_id, step.fencing_token, step.owner) then",
            "if true then",
        ),
        "leaves a remembered step as it is": ("do nothing", "do update set result = excluded.result"),
        "says when it did nothing": ("    return query\n", "    perform 1; return; return query\n"),
    },
    "recall": {
        "asks for this job": "s.job_id = recall.job_id and ",
        "asks for this step": " and s.name = recall.name",
    },
    "progress": {
        "is written by the holder only": (
            "if faultline.lock_lease(progress.job_id, progress.fencing_token, progress.owner) then",
            "if true then",
        ),
        "refuses a large value": ("octet_length(progress.progress::text) > 65536", "false"),
        "says when it did nothing": ("    return query\n", "    perform 1; return; return query\n"),
    },
    "refuse": {
        "looks up one job after the other": ("any (array[l.job_id])", "l.job_id"),
        "journals what it refuses": ("      where g.reason <> 'busy'\n", "      where false\n"),
        "does not journal what is busy": "      where g.reason <> 'busy'\n",
        "journals who was refused": ("blocked', g.token, g.owner,", "blocked', g.token, null,"),
        "journals the token": ("blocked', g.token, g.owner,", "blocked', null, g.owner,"),
        "journals the stale token": ("'stale_token', g.token", "'stale_token', null"),
        "journals the current token": ("'current_token', g.current_token", "'current_token', null"),
        "journals the reason": ("'reason', g.reason", "'reason', null"),
        "journals the verb": ("'verb', refuse.verb", "'verb', null"),
        "returns the current token": ("g.reason, g.current_token from judged g", "g.reason, null::bigint from judged g"),
        "returns whose lease it was": (
            "g.owner, g.reason, g.current_token from judged g",
            "'', g.reason, g.current_token from judged g",
        ),
        "calls a held lease busy": ("case v.reason when 'held' then 'busy' else v.reason end", "v.reason"),
        "leaves out what was done": ("where l.position = any (refuse.done)", "where false"),
        "looks at the whole lease": (
            "select l.job_id, l.token, l.owner from leases l where l.position = any (refuse.done)",
            (
                "select l.job_id, l.token, l.owner from leases l"
                " where l.job_id in (select x.job_id from leases x where x.position = any (refuse.done))"
            ),
        ),
        "knows a completion that was sent twice": ("refuse.verb in ('complete', 'renew')", "refuse.verb = 'renew'"),
        "knows a job that completed itself": ("refuse.verb in ('complete', 'renew')", "refuse.verb = 'complete'"),
        "forgives only a completion and a renewal": ("refuse.verb in ('complete', 'renew')", "true"),
        "forgives only the token of the ledger": "and f.fencing_token = l.token ",
        "forgives only the owner of the ledger": " and f.owner = l.owner",
    },
    "lease_status": {
        "believes the ledger": ("  order by k.state = 'succeeded' desc\n", "  order by k.state = 'succeeded'\n"),
        "compares the token": "when known.fencing_token is distinct from lease_status.fencing_token then 'token_mismatch'",
        "knows a lease without a token": (
            "known.fencing_token is distinct from lease_status.fencing_token",
            "known.fencing_token <> lease_status.fencing_token",
        ),
        "compares the owner": (
            "when known.owner is not null and known.owner is distinct from lease_status.owner then 'token_mismatch'",
            "",
        ),
        "returns the current token": ("current_token := known.fencing_token", "current_token := lease_status.fencing_token"),
        "knows a lease without an owner": (
            "known.owner is distinct from lease_status.owner",
            "known.owner <> lease_status.owner",
        ),
        "knows that a job has ended": "when known.state in ('succeeded', 'failed', 'cancelled') then 'not_running'",
        "knows that nobody holds the job": "when known.owner is null then 'lease_lost'",
        "knows that there is no such job": "when known.state is null then 'not_running'",
    },
    "check_most": {
        "refuses less than nothing": ("if most < 0 then", "if false then"),
    },
    "check_leases": {
        "counts the tokens": ("cardinality(job_ids) is distinct from cardinality(tokens)", "false"),
        "counts the owners": ("cardinality(job_ids) is distinct from cardinality(owners)", "false"),
        "wants every id": ("array_position(job_ids, null) is not null", "false"),
        "wants every token": ("array_position(tokens, null) is not null", "false"),
        "wants every owner": ("array_position(owners, null) is not null", "false"),
    },
    "check_failures": {
        "refuses failures that are no array": ("when data_exception then", "when sqlstate 'FL999' then"),
        "refuses more or fewer failures than leases": (
            "jsonb_array_length(failures) = leases",
            "true",
        ),
        "refuses calls that are no array": "\n          or jsonb_typeof(f.calls) <> 'array'",
        "refuses a failure without an ending": 'f."then" is null or ',
        "refuses an unknown ending": "f.\"then\" not in ('retry', 'fail', 'cancel') or ",
        "refuses an invalid delay": " or f.delay_seconds not between 0 and 31536000",
    },
}
