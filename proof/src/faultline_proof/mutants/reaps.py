"""The guards of taking jobs back from the dead."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

GUARDS: Guards = {
    "first_expired": {
        "looks in the index of leases": ("where j.state = 'running'\n    and", "where"),
        "looks from the bound on": "    and j.lease_expires_at >= first_expired.lower_bound\n",
        "looks no further than now": "    and j.lease_expires_at <= at\n",
        "answers with the earliest": ("order by j.lease_expires_at\n", "order by j.lease_expires_at desc\n"),
        "returns now where no lease has expired": ("coalesce(earliest, at)", "earliest"),
    },
    "reap": {
        "sees time go on in a loop": (
            "at constant timestamptz := least(faultline.clock(), reap.latest);",
            "at constant timestamptz := least(faultline.now(), reap.latest);",
        ),
        "judges by nothing later than the caller expects": ("least(faultline.clock(), reap.latest)", "faultline.clock()"),
        "judges by nothing later than the clock says": (
            "least(faultline.clock(), reap.latest)",
            "case when reap.latest < 'infinity' then reap.latest else faultline.clock() end",
        ),
        "can leave the dead alone": (
            "case when reap.notice_dead then array(select faultline.dead_workers(at)) else '{}' end",
            "array(select faultline.dead_workers(at))",
        ),
        "goes on for the sake of the dead": ("cardinality(dead) = 0\n    and not exists", "not exists"),
        "sees from the index of leases that there is nothing": ("where e.state = 'running' and", "where"),
        "sees from the bound on that there is nothing": (" and e.lease_expires_at >= reap.lower_bound and", " and"),
        "clears the owner": "        lease_owner = null,\n",
        "clears the expiry": (",\n        lease_expires_at = null\n", "\n"),
        "keeps the position in the queue": ("        started = false,\n", "        next_run_at = faultline.clock(),\n"),
        "gives an attempt back that did not start": (
            "attempt = case when l.guilty or l.spent then j.attempt else j.attempt - 1::smallint end",
            "attempt = j.attempt",
        ),
        "counts an attempt that did start": ("when l.guilty or l.spent then", "when l.spent then"),
        "records who had started": ("'attempt', t.attempt, 'started', t.started)", "'attempt', t.attempt)"),
        "suspects no job for what the database did": ("when not l.excused and (", "when ("),
        "says why it ended the job": (
            "case when l.spent then 'the worker died or lost its lease during the last attempt' else",
            "case when false then '' else",
        ),
        "keeps the error of the attempt before": ("else j.last_error end", "end"),
        "is counted": ("least(j.reaps + 1, 32767)::smallint else", "j.reaps else"),
        "does not suspect who only waited": ("(l.started or j.reaps = 0) then", "true then"),
        "counts no further than it can": ("least(j.reaps + 1, 32767)::smallint", "(j.reaps + 1)::smallint"),
        "is recorded in the journal": ("    order by t.id\n  )", "    where false\n  )"),
        "wakes workers that have claimed past the job": (
            "  perform faultline.wake_for(array(select l.job_id from unnest(lost) l));\n",
            "",
        ),
        "returns the task of what it ended": ("j.task::text", "null"),
        "returns the attempt of what it ended": (
            " j.attempt, j.max_attempts::smallint",
            " null::smallint, j.max_attempts::smallint",
        ),
        "returns how many attempts there were": ("j.max_attempts::smallint", "null::smallint"),
        "returns why it ended the job": (", j.last_error\n    from unnest(lost)", ", null\n    from unnest(lost)"),
    },
    "dead_workers": {
        "judges only who can be watched": ("where w.watched\n        and", "where"),
        "waits for three beats": "        and w.heartbeat_at < dead_workers.at - interval '3 seconds'\n",
        "judges by the time that it is given": (
            "w.heartbeat_at < dead_workers.at - interval",
            "w.heartbeat_at < faultline.clock() - interval",
        ),
        "waits no longer than three beats": ("interval '3 seconds'", "interval '60 seconds'"),
        "gives time to come back after a restart": (
            " or noticed_at < dead_workers.at - interval '30 seconds'",
            " or true",
        ),
        "gives no more than that": " or noticed_at < dead_workers.at - interval '30 seconds'",
        "judges who has come back": "w.heartbeat_at > noticed_at or ",
        "does not bury itself": ("            and l.pid = pg_backend_pid()\n", "            and false\n"),
        "knows its own lock from another's": (
            "            and (l.classid::bigint << 32 | l.objid::bigint) = faultline.worker_lock(w.id)\n",
            "",
        ),
        "believes the lock": ("where pg_try_advisory_xact_lock(faultline.worker_lock(s.id))", "where true"),
        "lets go of the lock": ("pg_try_advisory_xact_lock", "pg_try_advisory_lock"),
    },
    "run_noticed_at": {
        "notices that all sessions have ended": ("\n  where s.server_run = run;", ";"),
        "remembers the run": ("set server_run = run,\n", "set server_run = s.server_run,\n"),
        "believes no heartbeat from before the run": (
            "greatest(faultline.clock(), (select max(w.heartbeat_at) from faultline.workers w))",
            "faultline.clock()",
        ),
        "waits for nobody who holds the settings": (" for update skip locked))", " for update))"),
    },
    "heartbeat": {
        "notices a new run of the server": "  perform faultline.run_noticed_at();\n",
        "is renewed": (
            "  on conflict (id) do update\n  set heartbeat_at = excluded.heartbeat_at,",
            "  on conflict (id) do update\n  set heartbeat_at = w.heartbeat_at,",
        ),
        "can be watched from now on": ", watched = excluded.watched",
        "stores what is served": ", queues = excluded.queues",
        "stores who sleeps": ", sleeping = excluded.sleeping",
    },
    "server_run": {
        "changes when the server restarts or a standby is promoted": (
            "extract(epoch from pg_postmaster_start_time())::text || ",
            "",
        ),
        "changes when a process of the server crashes": ("coalesce(pg_last_wal_replay_lsn()::text, '-')", "''"),
    },
    "worker_lock": {
        "is a lock for each worker": " || worker_id",
    },
    "unregister_worker": {
        "takes off the list": ("where id = worker_id", "where false"),
        "takes no other worker off the list": " where id = worker_id",
    },
    "lost_jobs": {
        "leaves live leases alone": (
            "and (r.lease_expires_at <= at or",
            "and (r.lease_expires_at <= at + interval '1 second' or",
            ("else at end", "else at + interval '1 second' end"),
        ),
        "leaves live leases alone beside the dead": (
            "and (r.lease_expires_at <= at or",
            "and (r.lease_expires_at <= at + interval '1 second' or",
        ),
        "looks only at what has expired where nobody is dead": (
            "'infinity'::timestamptz else at end",
            "'infinity'::timestamptz else 'infinity'::timestamptz end",
        ),
        "takes from dead workers only": ("split_part(r.lease_owner, '/', 1) = any (dead)", "true"),
        "takes from dead workers": ("split_part(r.lease_owner, '/', 1) = any (dead)", "false"),
        "looks past the expired for the dead": (
            "when cardinality(dead) > 0 then 'infinity'::timestamptz else",
            "when false then 'infinity'::timestamptz else",
        ),
        "looks in the index of leases": ("where r.state = 'running'\n      and", "where"),
        "starts where leases may have expired": "      and r.lease_expires_at >= earliest\n",
        "uses no bound where somebody is dead": (
            "then '-infinity' else lost_jobs.lower_bound end",
            "then lost_jobs.lower_bound else lost_jobs.lower_bound end",
        ),
        "passes over locked rows": ("for update of r skip locked", "for update of r"),
        "takes no more than it was asked for": "    limit lost_jobs.max_jobs\n",
        "takes the longest expired first": ("order by r.lease_expires_at", "order by r.lease_expires_at desc"),
        "blames nobody when several had started": (
            "coalesce((select c.started from crowds c where c.worker = split_part(r.lease_owner, '/', 1)), 1) <=",
            "1 <=",
        ),
        "counts the started of each worker apart": (
            "where c.worker = split_part(r.lease_owner, '/', 1)",
            "order by c.started desc limit 1",
        ),
        "remembers the company that was reaped before": (
            " greatest(r.lease_expires_at - make_interval(secs => r.lease_seconds), w.heartbeat_at)",
            " at",
        ),
        "calls no other worker's job company": (
            "split_part(e.owner, '/', 1) = split_part(r.lease_owner, '/', 1)",
            "true",
        ),
        "calls nobody company who only waited": """\n            and e.detail @> '{"started": true}'""",
        "calls nobody company who was lost before the last renewal": (
            "greatest(r.lease_expires_at - make_interval(secs => r.lease_seconds), w.heartbeat_at)",
            "coalesce(w.heartbeat_at, '-infinity')",
        ),
        "calls nobody company who was lost before the last heartbeat": (
            "greatest(r.lease_expires_at - make_interval(secs => r.lease_seconds), w.heartbeat_at)",
            "r.lease_expires_at - make_interval(secs => r.lease_seconds)",
        ),
        "judges nobody for a caller that cannot": "      and (lost_jobs.notice_dead or x.excused or not r.started)\n",
        "takes from the living for such a caller": ("or x.excused or not r.started)", "or not r.started)"),
        "takes what only waited for such a caller": ("or x.excused or not r.started)", "or x.excused)"),
        "counts no attempt for what the database did": ("\n        and not x.excused\n", "\n"),
        "knows a worker with a recent heartbeat to be alive": (
            "coalesce(w.heartbeat_at > at - make_interval(secs => least(5, greatest(1.2, r.lease_seconds * 0.6))), false)",
            "false",
        ),
        "judges long leases by a silence of five seconds": ("least(5, greatest(", "least(300, greatest("),
        "judges short leases by a short silence": ("r.lease_seconds * 0.6", "5"),
        "excuses who could not come back to this run yet": ("h.alive or h.is_away as excused", "h.alive as excused"),
        "excuses nobody for long": (
            "run_noticed_at > at - interval '30 seconds'",
            "run_noticed_at > at - interval '300 seconds'",
        ),
        "excuses nobody who was back": (
            "coalesce(w.heartbeat_at <= run_noticed_at and",
            "coalesce(w.heartbeat_at is not null and",
        ),
        "lets workers come back and renew first": "      and not x.may_still_renew\n",
        "waits for them for seconds only": (
            "run_noticed_at > at - interval '5 seconds'",
            "run_noticed_at > at - interval '25 seconds'",
        ),
        "lets a living worker renew first": "h.alive and r.lease_expires_at > at - interval '3 seconds'\n          or ",
        "waits for a living worker for seconds only": (
            "r.lease_expires_at > at - interval '3 seconds'",
            "r.lease_expires_at > at - interval '1 hour'",
        ),
        "does not end one that did not start": (
            "r.started and r.attempt >= r.max_attempts and",
            "r.attempt >= r.max_attempts and",
        ),
        "does not end one that is not the last": ("r.started and r.attempt >= r.max_attempts and", "r.started and"),
        "tells the expired from the lost": (
            "case when r.lease_expires_at <= at then 'lease_expired' else",
            "case when false then 'lease_expired' else",
        ),
        "locks the rows": "\n    for update of r skip locked",
        "ends a last attempt that did start": ("r.started and r.attempt >= r.max_attempts and not x.excused", "false"),
        "ends no job for what the database did": (
            "r.attempt >= r.max_attempts and not x.excused",
            "r.attempt >= r.max_attempts",
        ),
    },
    "remove_dead_workers": {
        "takes the dead off the list": ("where d.id = any (remove_dead_workers.dead) for", "where false for"),
        "waits for nobody who holds the row of a dead worker": (
            "where d.id = any (remove_dead_workers.dead) for update skip locked",
            "where d.id = any (remove_dead_workers.dead) for update",
        ),
        "records the dead": ("  from gone g;", "  from gone g where false;"),
        "keeps the dead on the list while a job of theirs is locked": (
            "split_part(j.lease_owner, '/', 1) = w.id",
            "false",
        ),
    },
}
