"""The guards of what people and upkeep do to jobs."""

from __future__ import annotations

from faultline_proof.mutants.texts import Cut

_FIRST_EXPIRED = [
    Cut("first_expired", "looks in the index of leases", "where j.state = 'running'\n    and", "where"),
    Cut("first_expired", "looks from the bound on", "    and j.lease_expires_at >= first_expired.lower_bound\n"),
    Cut("first_expired", "looks no further than now", "    and j.lease_expires_at <= at\n"),
    Cut("first_expired", "answers with the earliest", "order by j.lease_expires_at\n", "order by j.lease_expires_at desc\n"),
    Cut("first_expired", "answers with now where nothing has run out", "coalesce(earliest, at)", "earliest"),
]
_REAP = [
    Cut(
        "reap",
        "sees time go on in a loop",
        "at constant timestamptz := faultline.clock();",
        "at constant timestamptz := faultline.now();",
    ),
    Cut(
        "reap",
        "leaves live leases alone",
        "and (r.lease_expires_at <= at or",
        "and (r.lease_expires_at <= at + interval '1 second' or",
        also=("else at end", "else at + interval '1 second' end"),
    ),
    Cut(
        "reap",
        "leaves live leases alone beside the dead",
        "and (r.lease_expires_at <= at or",
        "and (r.lease_expires_at <= at + interval '1 second' or",
    ),
    Cut(
        "reap",
        "looks only at what has expired where nobody is dead",
        "'infinity'::timestamptz else at end",
        "'infinity'::timestamptz else 'infinity'::timestamptz end",
    ),
    Cut("reap", "takes from dead workers only", "split_part(r.lease_owner, '/', 1) = any (dead)", "true"),
    Cut("reap", "takes from dead workers", "split_part(r.lease_owner, '/', 1) = any (dead)", "false"),
    Cut(
        "reap",
        "looks past the expired for the dead",
        "when cardinality(dead) > 0 then 'infinity'::timestamptz else",
        "when false then 'infinity'::timestamptz else",
    ),
    Cut(
        "reap",
        "can leave the dead alone",
        "case when reap.notice_dead then array(select faultline.dead_workers()) else '{}' end",
        "array(select faultline.dead_workers())",
    ),
    Cut("reap", "goes on for the sake of the dead", "cardinality(dead) = 0\n    and not exists", "not exists"),
    Cut("reap", "sees from the index of leases that there is nothing", "where e.state = 'running' and", "where"),
    Cut("reap", "looks in the index of leases", "where r.state = 'running'\n      and", "where"),
    Cut("reap", "starts where leases may have run out", "      and r.lease_expires_at >= earliest\n"),
    Cut("reap", "sees from the bound on that there is nothing", " and e.lease_expires_at >= earliest and", " and"),
    Cut(
        "reap",
        "uses no bound where somebody is dead",
        "then '-infinity' else reap.lower_bound end",
        "then reap.lower_bound else reap.lower_bound end",
    ),
    Cut("reap", "locks the rows", "    for update of r skip locked\n"),
    Cut("reap", "passes over locked rows", "for update of r skip locked", "for update of r"),
    Cut("reap", "takes no more than it was asked for", "    limit reap.max_jobs\n"),
    Cut("reap", "takes the longest expired first", "order by r.lease_expires_at", "order by r.lease_expires_at desc"),
    Cut("reap", "clears the owner", "        lease_owner = null,\n"),
    Cut("reap", "clears the expiry", ",\n        lease_expires_at = null\n", "\n"),
    Cut("reap", "keeps the place in the queue", "        started = false,\n", "        next_run_at = faultline.clock(),\n"),
    Cut(
        "reap",
        "gives an attempt back that did not start",
        "attempt = case when lost.guilty or lost.spent then j.attempt else j.attempt - 1::smallint end",
        "attempt = j.attempt",
    ),
    Cut("reap", "counts an attempt that did start", "when lost.guilty or lost.spent then", "when lost.spent then"),
    Cut(
        "reap",
        "blames nobody when several had started",
        "r.started and coalesce((select c.started from crowds c where c.worker = split_part(r.lease_owner, '/', 1)), 1) <=",
        "r.started and 1 <=",
    ),
    Cut(
        "reap",
        "counts the started of each worker apart",
        "where c.worker = split_part(r.lease_owner, '/', 1)",
        "order by c.started desc limit 1",
    ),
    Cut(
        "reap",
        "remembers the company that was taken back before",
        " greatest(r.lease_expires_at - make_interval(secs => r.lease_seconds), w.beat_at)",
        " at",
    ),
    Cut(
        "reap",
        "calls no other worker's job company",
        "split_part(e.owner, '/', 1) = split_part(r.lease_owner, '/', 1)",
        "true",
    ),
    Cut("reap", "calls nobody company who only waited", """\n            and e.detail @> '{"started": true}'"""),
    Cut("reap", "tells who had started", "'attempt', t.attempt, 'started', t.started)", "'attempt', t.attempt)"),
    Cut(
        "reap",
        "calls nobody company who was lost before the last renewal",
        "greatest(r.lease_expires_at - make_interval(secs => r.lease_seconds), w.beat_at)",
        "coalesce(w.beat_at, '-infinity')",
    ),
    Cut(
        "reap",
        "calls nobody company who was lost before the last heartbeat",
        "greatest(r.lease_expires_at - make_interval(secs => r.lease_seconds), w.beat_at)",
        "r.lease_expires_at - make_interval(secs => r.lease_seconds)",
    ),
    Cut(
        "reap",
        "judges nobody for a caller that cannot",
        "      and (reap.notice_dead or x.excused or not r.started)\n",
    ),
    Cut("reap", "takes from the living for such a caller", "or x.excused or not r.started)", "or not r.started)"),
    Cut("reap", "takes what only waited for such a caller", "or x.excused or not r.started)", "or x.excused)"),
    Cut(
        "reap",
        "ends a last attempt that did start",
        "r.started and r.attempt >= r.max_attempts and not x.excused as spent",
        "false as spent",
    ),
    Cut("reap", "ends no job for what the database did", " and not x.excused as spent", " as spent"),
    Cut("reap", "counts no attempt for what the database did", "\n        and not x.excused\n", "\n"),
    Cut("reap", "suspects no job for what the database did", "when not lost.excused and (", "when ("),
    Cut(
        "reap",
        "knows a worker with a recent heartbeat to be alive",
        "coalesce(w.beat_at > at - make_interval(secs => least(5, greatest(1.2, r.lease_seconds * 0.6))), false)",
        "false",
    ),
    Cut("reap", "judges long leases by a silence of five seconds", "least(5, greatest(", "least(300, greatest("),
    Cut("reap", "judges short leases by a short silence", "r.lease_seconds * 0.6", "5"),
    Cut("reap", "excuses who could not come back to this run yet", "h.alive or h.is_away as excused", "h.alive as excused"),
    Cut(
        "reap",
        "excuses nobody for long",
        "run_noticed_at > at - interval '30 seconds'",
        "run_noticed_at > at - interval '300 seconds'",
    ),
    Cut(
        "reap",
        "excuses nobody who was back",
        "coalesce(w.beat_at <= run_noticed_at and",
        "coalesce(w.beat_at is not null and",
    ),
    Cut("reap", "lets workers come back and renew first", "      and not x.may_still_renew\n"),
    Cut(
        "reap",
        "waits for them for seconds only",
        "run_noticed_at > at - interval '5 seconds'",
        "run_noticed_at > at - interval '25 seconds'",
    ),
    Cut(
        "reap",
        "lets a living worker renew first",
        "h.alive and r.lease_expires_at > at - interval '3 seconds'\n          or ",
        "",
    ),
    Cut(
        "reap",
        "waits for a living worker for seconds only",
        "r.lease_expires_at > at - interval '3 seconds'",
        "r.lease_expires_at > at - interval '1 hour'",
    ),
    Cut(
        "reap",
        "does not end one that did not start",
        "r.started and r.attempt >= r.max_attempts and",
        "r.attempt >= r.max_attempts and",
    ),
    Cut(
        "reap",
        "does not end one that is not the last",
        "r.started and r.attempt >= r.max_attempts and",
        "r.started and",
    ),
    Cut(
        "reap",
        "says why it ended the job",
        "case when lost.spent then 'the worker was lost during the last attempt' else",
        "case when false then '' else",
    ),
    Cut("reap", "keeps the error of the attempt before", "else j.last_error end", "end"),
    Cut("reap", "is counted", "least(j.reaps + 1, 32767)::smallint else", "j.reaps else"),
    Cut("reap", "does not suspect who only waited", "(j.started or j.reaps = 0) then", "true then"),
    Cut("reap", "counts no further than it can", "least(j.reaps + 1, 32767)::smallint", "(j.reaps + 1)::smallint"),
    Cut("reap", "is told by the journal", "    order by t.id\n  )", "    where false\n  )"),
    Cut(
        "reap",
        "tells the expired from the lost",
        "case when r.lease_expires_at <= at then 'lease_expired' else",
        "case when false then 'lease_expired' else",
    ),
    Cut("reap", "wakes workers that have claimed past the job", "  perform faultline.wake_for(ids);\n"),
    Cut("reap", "tells the task of what it ended", "array_agg(t.task)", "null"),
    Cut("reap", "tells the attempt of what it ended", "array_agg(t.attempt)", "null"),
    Cut("reap", "tells how many attempts there were", "array_agg(t.max_attempts)", "null"),
    Cut("reap", "tells why it ended the job", "array_agg(t.last_error)", "null"),
    Cut("reap", "takes the dead off the list", "where w.id = any (dead)\n", "where false\n"),
    Cut(
        "reap",
        "keeps the dead on the list while a job of theirs is locked",
        "        and not exists (\n          select from faultline.open_jobs j\n"
        "          where j.state = 'running' and split_part(j.lease_owner, '/', 1) = w.id\n        )\n",
    ),
    Cut("reap", "tells of the dead", "    from gone g;", "    from gone g where false;"),
]

_DEAD = [
    Cut("dead_workers", "judges only who can be watched", "where w.watched\n        and", "where"),
    Cut("dead_workers", "waits for three beats", "        and w.beat_at < faultline.clock() - interval '3 seconds'\n"),
    Cut("dead_workers", "waits no longer than three beats", "interval '3 seconds'", "interval '60 seconds'"),
    Cut(
        "dead_workers",
        "gives time to come back after a restart",
        " or noticed_at < faultline.clock() - interval '30 seconds'",
        " or true",
    ),
    Cut(
        "dead_workers",
        "gives no more than that",
        " or noticed_at < faultline.clock() - interval '30 seconds'",
    ),
    Cut(
        "dead_workers",
        "judges who has come back",
        "w.beat_at > noticed_at or ",
    ),
    Cut("run_noticed_at", "notices that all sessions have ended", "\n  where s.server_run = run;", ";"),
    Cut("run_noticed_at", "remembers the run", "set server_run = run,\n", "set server_run = s.server_run,\n"),
    Cut(
        "run_noticed_at",
        "believes no heartbeat from before the run",
        "greatest(faultline.clock(), (select max(w.beat_at) from faultline.workers w))",
        "faultline.clock()",
    ),
    Cut("run_noticed_at", "waits for nobody who holds the settings", " for update skip locked))", " for update))"),
    Cut("beat", "notices a new run of the server", "  perform faultline.run_noticed_at();\n"),
    Cut(
        "server_run",
        "changes when the server restarts or a standby is promoted",
        "extract(epoch from pg_postmaster_start_time())::text || ",
    ),
    Cut("server_run", "changes when a process of the server crashes", "coalesce(pg_last_wal_replay_lsn()::text, '-')", "''"),
    Cut("dead_workers", "does not bury itself", "            and l.pid = pg_backend_pid()\n", "            and false\n"),
    Cut(
        "dead_workers",
        "knows its own lock from another's",
        "            and (l.classid::bigint << 32 | l.objid::bigint) = faultline.worker_lock(w.id)\n",
    ),
    Cut("dead_workers", "believes the lock", "where pg_try_advisory_xact_lock(faultline.worker_lock(s.id))", "where true"),
    Cut("dead_workers", "lets go of the lock", "pg_try_advisory_xact_lock", "pg_try_advisory_lock"),
    Cut("dead_workers", "keeps another reaper away", "pg_try_advisory_xact_lock", "pg_try_advisory_xact_lock_shared"),
    Cut("worker_lock", "is a lock for each worker", " || worker_id"),
    Cut(
        "beat",
        "is renewed",
        "  on conflict (id) do update\n  set beat_at = excluded.beat_at,",
        "  on conflict (id) do update\n  set beat_at = w.beat_at,",
    ),
    Cut("beat", "can be watched from now on", ", watched = excluded.watched"),
    Cut("beat", "tells what is served", ", queues = excluded.queues"),
    Cut("beat", "tells who sleeps", ", sleeping = excluded.sleeping"),
    Cut("leave", "takes off the list", "where id = worker_id", "where false"),
    Cut("leave", "takes no other worker off the list", " where id = worker_id"),
]

_END = [
    Cut("cancel", "locks the row", "\n  for update;", ";"),
    Cut(
        "cancel",
        "says that there is nothing to cancel",
        "perform faultline.not_open(cancel.job_id, 'cancelled', cancel.only_queues);",
        "null;",
    ),
    Cut("cancel", "leaves a failed job alone", "elsif job.state = 'failed' then", "elsif false then"),
    Cut("cancel", "cancels once", "elsif job.state in ('queued', 'running') then", "else"),
    Cut("cancel", "clears the owner", "        lease_owner = null,\n"),
    Cut("cancel", "clears the expiry", ",\n        lease_expires_at = null\n", "\n"),
    Cut(
        "cancel",
        "is told by the journal",
        "    insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)\n"
        "    values (\n      faultline.clock(), cancel.job_id, 'cancelled', job.fencing_token, job.lease_owner,\n"
        "      jsonb_build_object('was', job.state) || signed || case job.state\n"
        "        when 'running' then faultline.epoch(job.claimed_at, job.lease_expires_at, job.renewals) else '{}'\n"
        "      end\n    );\n",
    ),
    Cut(
        "cancel",
        "tells of its epoch",
        "faultline.epoch(job.claimed_at, job.lease_expires_at, job.renewals)",
        "'{}'::jsonb",
    ),
    Cut(
        "reap",
        "tells of the epochs",
        "\n        || faultline.epoch(t.claimed_at, t.lease_expires_at, t.renewals)",
    ),
    Cut(
        "fail",
        "tells of the epochs",
        "\n        || faultline.epoch(e.claimed_at, e.lease_expires_at, e.renewals)",
    ),
    Cut("cancel", "tells the worker", "    if job.state = 'running' and", "    if false and"),
    Cut(
        "cancel", "can do without a notification", "coalesce(current_setting('faultline.notify', true), '') <> 'off'", "true"
    ),
    Cut(
        "not_open",
        "tells a done job from none",
        "select from faultline.ledger f\n    where",
        "select from faultline.ledger f\n    where false and",
    ),
    Cut("retry", "locks the row", "\n  for update;", ";"),
    Cut(
        "retry",
        "says that there is nothing to retry",
        "perform faultline.not_open(retry.job_id, 'retried', retry.only_queues);",
        "null;",
    ),
    Cut("retry", "leaves a waiting job alone", "in ('queued', 'running')", "in ('running')"),
    Cut("retry", "leaves a running job alone", "in ('queued', 'running')", "in ('queued')"),
    Cut("start_over", "is due now", "        next_run_at = faultline.clock(),\n"),
    Cut("start_over", "gives all attempts back", "        attempt = 0,\n"),
    Cut("start_over", "forgets the crashes", "        reaps = 0,\n"),
    Cut("start_over", "forgets the error", ",\n        last_error = null\n", "\n"),
    Cut(
        "start_over",
        "leaves the token as it is",
        "        attempt = 0,\n",
        "        attempt = 0,\n        fencing_token = 0,\n",
    ),
    Cut("start_over", "is told by the journal", "  from again a;\n", "  from again a where false;\n"),
    Cut("start_over", "tells how the job had ended", "jsonb_build_object('was', a.was)", "'{}'"),
    Cut("start_over", "looks up one job after the other", "any (array[e.id])", "e.id"),
    Cut("start_over", "wakes workers", "  perform faultline.wake_for(start_over.job_ids);\n"),
]

_RECOVER = [
    Cut("recover", "wants a floor that is no pit", "not between 0 and 4000000000000000000", "> 4000000000000000000"),
    Cut("recover", "wants room above the floor", "not between 0 and 4000000000000000000", "< 0"),
    Cut("recover", "never lowers the floor", "greatest(\n    s.token_floor,\n    coalesce(", "greatest(\n    coalesce("),
    Cut("recover", "locks the table", "  lock table faultline.open_jobs in exclusive mode;\n"),
    Cut("recover", "keeps row locks out", "in exclusive mode", "in share row exclusive mode"),
    Cut(
        "recover",
        "chooses a floor that no job has reached",
        "min(microseconds << k)",
        "min(null::bigint)",
    ),
    Cut("recover", "doubles the time where the floor is ahead of it", "generate_series(0, 12)", "generate_series(0, 0)"),
    Cut("recover", "chooses one above the last", "microseconds << k > s.token_floor", "true"),
    Cut("recover", "counts the journal on", "where l.id > counted order", "where false order"),
    Cut("recover", "does not hold others up for long", "perform set_config('lock_timeout', '400ms', true)", "null"),
    Cut("recover", "leaves a caller's own patience alone", "if patience = '0' then", "if true then"),
    Cut("recover", "gives the caller's patience back", "  perform set_config('lock_timeout', patience, true);\n"),
    Cut(
        "recover",
        "voids leases above the floor too",
        "where j.state = 'running' and",
        "where j.state = 'running' and j.fencing_token < chosen and",
    ),
    Cut(
        "recover", "lifts the token", "set fencing_token = greatest(j.fencing_token, chosen),\n          state", "set state"
    ),
    Cut("recover", "never lowers a token", "greatest(j.fencing_token, chosen)", "chosen"),
    Cut(
        "recover",
        "gives the attempt back",
        "          attempt = j.attempt - 1::smallint,\n",
    ),
    Cut("recover", "forgets the mark of the start", "          started = false,\n"),
    Cut("recover", "clears the owner", "          lease_owner = null,\n"),
    Cut(
        "recover",
        "is told by the journal",
        "      from changed c\n      order by c.id",
        "      from changed c\n      where false",
    ),
    Cut(
        "reconcile",
        "closes only what the ledger knows",
        "where exists (select from faultline.ledger f where f.job_id = j.id)",
        "where true",
    ),
    Cut("reconcile", "remembers the highest token", "set token_floor = highest.token", "set token_floor = s.token_floor"),
    Cut("reconcile", "never lowers the floor", "\n      where s.token_floor < highest.token", ""),
    Cut("reconcile", "passes over locked rows", "      for update skip locked\n"),
    Cut("reconcile", "takes no more than it was asked for", "      limit reconcile.max_jobs\n"),
    Cut(
        "reconcile",
        "is told by the journal",
        "      from closed c\n      order by c.id",
        "      from closed c\n      where false",
    ),
]

_PRUNE_LEDGER = (
    "          where o.finished_at < horizon\n          limit prune.max_rows\n          for update skip locked\n"
    "        ))\n        returning f."
)
_PRUNE_FAILED = (
    "and o.finished_at < horizon\n          limit prune.max_rows\n          for update skip locked\n"
    "        ))\n        returning j."
)
_PRUNE_JOURNAL = "where o.at < horizon limit prune.max_rows for update skip locked"
_PRUNE_KEYS = (
    "          where o.created_at < horizon\n"
    "            and not exists (select from faultline.open_jobs j where j.id = o.job_id)\n"
    "          limit prune.max_rows\n          for update of o skip locked"
)
_PRUNE_OF = {"ledger": _PRUNE_LEDGER, "failed": _PRUNE_FAILED, "journal": _PRUNE_JOURNAL, "keys": _PRUNE_KEYS}

_PRUNE = [
    Cut("prune", f"{what}: {guard}", text, text.replace(piece, instead))
    for what, text in _PRUNE_OF.items()
    for guard, piece, instead in (
        ("passes over locked rows", " skip locked", ""),
        ("takes no more than it was asked for", "limit prune.max_rows", "limit 1000000"),
        ("forgets only what is old enough", " < horizon", " < 'infinity'"),
    )
] + [
    *(
        Cut(
            "prune", f"{index}: knows nothing of pages that it emptied", f"      ages := to_regclass('faultline.{index}');\n"
        )
        for index in ("ledger_finished", "journal_at", "keys_created")
    ),
    Cut(
        "prune",
        "does not wait for a vacuum",
        "set_config('lock_timeout', '1ms', true)",
        "set_config('lock_timeout', '0', true)",
    ),
    Cut("prune", "leaves the patience of its caller alone", "      perform set_config('lock_timeout', patience, true);\n"),
    Cut("prune", "wants an age", "prune.older_than is null or "),
    Cut("prune", "wants an age that is not negative", " or prune.older_than < interval '0'"),
    Cut("prune", "failed: looks in the index of endings", "o.state in ('failed', 'cancelled') and ", ""),
    Cut(
        "prune",
        "keys: keeps the key of an open job",
        _PRUNE_KEYS,
        _PRUNE_KEYS.replace("            and not exists (select from faultline.open_jobs j where j.id = o.job_id)\n", ""),
    ),
    Cut("prune", "forgets the steps too", "    delete from faultline.steps s where s.job_id = any (pruned);\n"),
    Cut(
        "prune",
        "remembers the highest token",
        "    update faultline.settings s set token_floor = highest where s.token_floor < highest;\n",
    ),
    Cut(
        "prune",
        "never forgets a higher token",
        "set token_floor = highest where s.token_floor < highest",
        "set token_floor = highest",
    ),
    Cut(
        "prune",
        "wants to know what",
        "    else\n      raise exception 'there is nothing named \"%\" to prune', prune.what\n"
        "        using errcode = 'FL005', hint = 'prune ledger, failed, journal or keys';\n",
        "    else\n      null;\n",
    ),
]

CUTS = [*_FIRST_EXPIRED, *_REAP, *_DEAD, *_END, *_RECOVER, *_PRUNE]
