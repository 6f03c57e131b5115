"""The guards of what people and upkeep do to jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

_PRUNE_KEYS_OPEN = "        and not exists (select from faultline.open_jobs j where j.id = o.job_id)\n"

#: What is pruned by its age alone, and the words that say which rows, and how many.
_PRUNED = {
    "prune_ledger": (
        "where o.finished_at < horizon and o.flow_id is null\n"
        "      limit prune_ledger.max_rows\n      for update skip locked"
    ),
    "prune_failed": (
        "and o.finished_at < horizon and o.flow_id is null\n    limit prune_failed.max_rows\n    for update skip locked"
    ),
    "prune_journal": "where o.at < horizon limit prune_journal.max_rows for update skip locked",
    "prune_keys": (
        f"where o.created_at < horizon\n{_PRUNE_KEYS_OPEN}      limit prune_keys.max_rows\n      for update of o skip locked"
    ),
}

_PRUNES = {
    step: {
        guard: (text, text.replace(piece, instead))
        for guard, piece, instead in (
            ("passes over locked rows", " skip locked", ""),
            ("takes no more than it was asked for", f"limit {step}.max_rows", "limit 1000000"),
            ("forgets only what is old enough", " < horizon", " < 'infinity'"),
        )
    }
    for step, text in _PRUNED.items()
}

GUARDS: Guards = {
    "cancel": {
        "locks the row": ("\n  for update;", ";"),
        "says that there is nothing to cancel": (
            "perform faultline.not_open(cancel.job_id, 'cancelled', cancel.only_queues);",
            "null;",
        ),
        "leaves a failed job alone": ("elsif job.state = 'failed' then", "elsif false then"),
        "cancels once": ("elsif job.state in ('queued', 'running') then", "else"),
        "clears the owner": "        lease_owner = null,\n",
        "clears the expiry": "        lease_expires_at = null,\n",
        "is recorded in the journal": (
            "    insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)\n"
            "    values (\n      faultline.clock(), cancel.job_id, 'cancelled', job.fencing_token, job.lease_owner,\n"
            "      jsonb_build_object('was', job.state) || signed || case job.state\n"
            "        when 'running' then faultline.lease_details(job.claimed_at, job.lease_expires_at, job.renewals) else"
            " '{}'\n"
            "      end\n    );\n"
        ),
        "records its epoch": ("faultline.lease_details(job.claimed_at, job.lease_expires_at, job.renewals)", "'{}'::jsonb"),
        "notifies the worker": ("    if job.state = 'running' and", "    if false and"),
        "can do without a notification": ("coalesce(current_setting('faultline.notify', true), '') <> 'off'", "true"),
    },
    "reap": {
        "records the epochs": "\n        || faultline.lease_details(t.claimed_at, t.lease_expires_at, t.renewals)",
    },
    "fail": {
        "records the epochs": "\n        || faultline.lease_details(e.claimed_at, e.lease_expires_at, e.renewals)",
    },
    "not_open": {
        "tells a done job from none": (
            "select from faultline.ledger f\n    where",
            "select from faultline.ledger f\n    where false and",
        ),
    },
    "retry": {
        "locks the row": ("\n  for update;", ";"),
        "says that there is nothing to retry": (
            "perform faultline.not_open(retry.job_id, 'retried', retry.only_queues);",
            "null;",
        ),
        "leaves a waiting job alone": ("in ('queued', 'running')", "in ('running')"),
        "leaves a running job alone": ("in ('queued', 'running')", "in ('queued')"),
    },
    "requeue_ended_jobs": {
        "is due now": ("else faultline.clock() end", "else j.next_run_at end"),
        "gives all attempts back": "        attempt = 0,\n",
        "forgets the crashes": "        reaps = 0,\n",
        "forgets the error": "        last_error = null,\n",
        "leaves the token as it is": ("        attempt = 0,\n", "        attempt = 0,\n        fencing_token = 0,\n"),
        "is recorded in the journal": ("  from again a;\n", "  from again a where false;\n"),
        "records how the job had ended": ("jsonb_build_object('was', a.was)", "'{}'"),
        "looks up one job after the other": ("any (array[e.id])", "e.id"),
        "wakes workers": "  perform faultline.wake_for(ids);\n",
    },
    "recover": {
        "wants a floor that is no pit": ("not between 0 and 4000000000000000000", "> 4000000000000000000"),
        "wants room above the floor": ("not between 0 and 4000000000000000000", "< 0"),
        "never lowers the floor": ("greatest(\n    s.token_floor,\n    coalesce(", "greatest(\n    coalesce("),
        "locks the table": "  lock table faultline.open_jobs in exclusive mode;\n",
        "holds queues with limits for the longest lease": ("select max(r.lease_seconds)", "select max(null::integer)"),
        "holds queues with limits where no lease is known": ("      30,\n      (select max", "      0,\n      (select max"),
        "keeps row locks out": ("in exclusive mode", "in share row exclusive mode"),
        "chooses a floor that no job has reached": ("min(microseconds << k)", "min(null::bigint)"),
        "doubles the time where the floor is ahead of it": ("generate_series(0, 12)", "generate_series(0, 0)"),
        "chooses one above the last": ("microseconds << k > s.token_floor", "true"),
        "does not hold others up for long": ("perform set_config('lock_timeout', '400ms', true)", "null"),
        "leaves a caller's own patience alone": ("if patience = '0' then", "if true then"),
        "gives the caller's patience back": "  perform set_config('lock_timeout', patience, true);\n",
        "voids leases above the floor too": (
            "where j.state = 'running' and",
            "where j.state = 'running' and j.fencing_token < chosen and",
        ),
        "lifts the token": ("set fencing_token = greatest(j.fencing_token, chosen),\n        state", "set state"),
        "never lowers a token": ("greatest(j.fencing_token, chosen)", "chosen"),
        "gives the attempt back": "        attempt = j.attempt - 1::smallint,\n",
        "forgets the mark of the start": "        started = false,\n",
        "clears the owner": "        lease_owner = null,\n",
        "is recorded in the journal": (
            "    from changed c\n    order by c.id",
            "    from changed c\n    where false",
        ),
        "names with each job who did it": ("c.token_was) || signed", "c.token_was)"),
        "names with the floor who did it": ("'value', chosen) || signed", "'value', chosen)"),
        "records the floor": ("'value', chosen", "'value', null"),
    },
    "advance_sequences": {
        "counts the journal on": ("e where e.id > $2", "e where e.id > $2 and false"),
    },
    "reconcile": {
        "closes only what the ledger knows": (
            "where exists (select from faultline.ledger f where f.job_id = j.id)",
            "where true",
        ),
        "remembers the highest token": ("set token_floor = highest.token", "set token_floor = s.token_floor"),
        "never lowers the floor": "\n    where s.token_floor < highest.token",
        "passes over locked rows": "    for update skip locked\n",
        "takes no more than it was asked for": "    limit reconcile.max_jobs\n",
        "is recorded in the journal": ("    from closed c\n    order by c.id", "    from closed c\n    where false"),
    },
    "prune": {
        **{
            f"{index}: knows nothing of pages that it emptied": f"      ages := to_regclass('faultline.{index}');\n"
            for index in ("journal_at", "keys_created")
        },
        "ledger_finished: knows nothing of pages that it emptied": (
            "      ages := to_regclass('faultline.ledger_finished');\n    when 'failed'",
            "    when 'failed'",
        ),
        "wants an age that makes sense": ("prune.older_than not between interval '0' and interval '1000 years'", "false"),
        **{
            f"{what}: without an age, goes by its own setting": (
                f"when '{what}' then s.{setting}",
                f"when '{what}' then {other}",
            )
            for what, setting, other in (
                ("ledger", "keep_succeeded_seconds", "s.keep_failed_seconds"),
                ("failed", "keep_failed_seconds", "s.keep_succeeded_seconds"),
                ("journal", "keep_journal_seconds", "s.keep_succeeded_seconds"),
                ("keys", "keep_keys_seconds", "s.keep_succeeded_seconds"),
                ("flows", "keep_flows_seconds", "s.keep_keys_seconds"),
            )
        },
        "remembers the highest token": (
            "    update faultline.settings s set token_floor = highest where s.token_floor < highest;\n",
            "",
        ),
        "never forgets a higher token": (
            "set token_floor = highest where s.token_floor < highest",
            "set token_floor = highest",
        ),
        "wants to know what": (
            (
                "    else\n      raise exception 'cannot prune \"%\"', prune.what\n"
                "        using errcode = 'FL005', "
                "hint = 'choose ledger, failed, journal, keys, unique_keys, ticks or flows';\n"
            ),
            "    else\n      null;\n",
        ),
    },
    "prune_ledger": {
        **_PRUNES["prune_ledger"],
        "leaves flows alone": (
            "where o.finished_at < horizon and o.flow_id is null",
            "where o.finished_at < horizon",
        ),
        "forgets what is stored for the jobs": "  perform faultline.forget_steps(job_ids);\n",
    },
    "prune_failed": {
        **_PRUNES["prune_failed"],
        "leaves flows alone": ("and o.finished_at < horizon and o.flow_id is null", "and o.finished_at < horizon"),
        "looks in the index of endings": "o.state in ('failed', 'cancelled') and ",
        "forgets what is stored for the jobs": "  perform faultline.forget_steps(job_ids);\n",
    },
    "prune_journal": _PRUNES["prune_journal"],
    "prune_keys": {**_PRUNES["prune_keys"], "keeps the key of an open job": _PRUNE_KEYS_OPEN},
    "forget_steps": {
        "forgets the steps": "  delete from faultline.steps s where s.job_id = any (forget_steps.job_ids);\n",
        "forgets the signals too": ("delete from faultline.signals s where s.job_id = any (forget_steps.job_ids);", "null;"),
        "forgets the streams too": ("delete from faultline.streams s where s.job_id = any (forget_steps.job_ids);", "null;"),
    },
    "desummarize_pages": {
        "does not wait for a vacuum": (
            "set_config('lock_timeout', '1ms', true)",
            "set_config('lock_timeout', '0', true)",
        ),
        "leaves the patience of its caller alone": "  perform set_config('lock_timeout', patience, true);\n",
    },
}
