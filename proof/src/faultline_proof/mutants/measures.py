"""The guards of what is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.measures import COUNTS

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

_SUMS = ("wait_seconds_sum", "run_seconds_sum")

_SAMPLE_PAUSE = "least(30, greatest(5, 50 * l.took_seconds))"

_IS_NEWS = (
    "    and (w.tasks, w.connections_max, w.schedules, w.budgets, w.limits)\n"
    "      is distinct from (announce.tasks, announce.connections_max, announce.schedules, announce.budgets,"
    " announce.limits)"
)

GUARDS: Guards = {
    "tally": {
        "wants a worker": ("coalesce(tally.worker_id, '') = ''", "tally.worker_id is null"),
        "wants a worker that is not null": ("coalesce(tally.worker_id, '') = ''", "tally.worker_id = ''"),
        "takes no minute that may be rolled up": "r.minute > faultline.clock() - interval '55 minutes'\n    and ",
        "takes no minute of the future": "\n    and r.minute < faultline.clock() + interval '5 minutes'",
        "counts by the minute": ("date_trunc('minute', r.minute)", "r.minute"),
        "takes nothing back": (
            "excluded.started + excluded.succeeded + excluded.failed + excluded.rescheduled + excluded.released",
            "1000 + excluded.released",
        ),
        **{
            f"takes the newest {name}": (f"{name} = excluded.{name}", f"{name} = t.{name}")
            for name in (*COUNTS, *_SUMS, "waits", "runs")
        },
    },
    "sample": {
        "is done by one": ("not pg_try_advisory_xact_lock(hashtextextended('faultline sample', 0))", "false"),
        "lets nobody wait": (
            "pg_try_advisory_xact_lock(hashtextextended('faultline sample', 0))",
            "(pg_advisory_xact_lock(hashtextextended('faultline sample', 0)) is not null)",
        ),
        "is not done all the time": (_SAMPLE_PAUSE, "least(30, 50 * l.took_seconds)"),
        "is done rarely where it is dear": (_SAMPLE_PAUSE, "5"),
        "is done twice a minute, however dear": (_SAMPLE_PAUSE, "greatest(5, 50 * l.took_seconds)"),
        "goes on after the clock was set back": "began >= l.sampled_at\n      and ",
        "brings a lost row back": "insert into faultline.sampling default values on conflict do nothing;",
        "remembers when": ("set sampled_at = began, took_seconds", "set took_seconds"),
        "remembers what it took": ", took_seconds = extract(epoch from faultline.clock() - began)",
        "keeps one of a minute": ("date_trunc('minute', began)", "began"),
        **{
            f"keeps the newest {name}": (f"{name} = excluded.{name}", f"{name} = samples.{name}")
            for name in ("sampled_at", "due", "delayed", "running", "failed", "oldest_due_at", "estimated")
        },
    },
    "count_queued": {
        "counts due jobs of a small queue": (
            (
                "count(*) filter (where j.next_run_at <= at) as due\n        from (\n"
                "          select j.next_run_at from faultline.open_jobs j where"
            ),
            "count(*) as due\n        from (\n          select j.next_run_at from faultline.open_jobs j where",
        ),
        "counts due jobs of a crowded queue": (
            (
                "count(*) filter (where j.next_run_at <= at) as due\n        from (\n"
                "          select j.next_run_at from faultline.open_jobs j\n"
            ),
            "count(*) as due\n        from (\n          select j.next_run_at from faultline.open_jobs j\n",
        ),
        "counts waiting jobs of a small queue": (
            "j where j.state = 'queued' and j.queue = f.name limit few_max",
            "j where j.queue = f.name limit few_max",
        ),
        "counts waiting jobs of a crowded queue": (
            "where j.state = 'queued' and j.queue = f.name\n          limit",
            "where j.queue = f.name\n          limit",
        ),
        "shares what may be counted": ("2 * count_queued.exact_max::bigint / greatest(1, count(*))", "1000000"),
        "counts one up to the limit": ("least(count_queued.exact_max, 2 *", "least(1000000, 2 *"),
        "says where waiting jobs are estimated": ("g.since, m.jobs > b.jobs\n", "g.since, false\n"),
    },
    "oldest_due": {
        "looks at due jobs only": "    where d.next_run_at <= oldest_due.at\n",
        "counts no wait before a job was there": ("min(greatest(d.next_run_at, d.created_at))", "min(d.next_run_at)"),
        "looks at every priority": (
            "and j.queue = p.name and j.priority > p.priority",
            "and j.queue = p.name and j.priority > p.priority and false",
        ),
    },
    "queues_seen": {
        "knows queues that were worked on": (
            "where t.queue = f.name and t.minute > at - interval '1 day'",
            "where false",
        ),
        "forgets them after a day": " and t.minute > at - interval '1 day'",
        "knows queues that have emptied": ("where s.due + s.delayed + s.running + s.failed > 0", "where false"),
        "forgets them then": ("where s.due + s.delayed + s.running + s.failed > 0", "where true"),
        "looks at the last one": ("order by s.minute desc limit 1", "order by s.minute limit 1"),
    },
    "count_jobs": {
        "counts delayed jobs": ("coalesce(greatest(q.jobs - q.due,", "coalesce(greatest(q.jobs,"),
        "counts leased jobs": ("where j.state = 'running' and", "where j.state = 'x' and"),
        "counts failed jobs only": (" and j.state = 'failed' and", " and"),
        "says where running jobs are estimated": ("(select sum(l.running) from leased l) > count_jobs.exact_max", "false"),
        "says where failed jobs are estimated": ("(select sum(e.failed) from ended e) > count_jobs.exact_max", "false"),
        "draws due jobs": (
            "filter (where j.state = 'queued' and (j.next_run_at <= at or j.in_group)) * 100",
            "* 100",
        ),
        "draws delayed jobs": (
            "filter (where j.state = 'queued' and j.next_run_at > at and j.in_group is not true) * 100",
            "* 100",
        ),
        "draws running jobs": ("filter (where j.state = 'running') * 100", "* 100"),
        "draws failed jobs": ("filter (where j.state = 'failed') * 100", "* 100"),
        "takes the estimate of due jobs": ("case when q.estimated then d.due end", "null::bigint"),
        "takes the estimate of delayed jobs": ("case when q.estimated then d.delayed end", "null::bigint"),
        "takes the estimate of running jobs": ("case when m.running then d.running end", "null::bigint"),
        "takes the estimate of failed jobs": ("case when m.failed then d.failed end", "null::bigint"),
        "knows queues where jobs wait": "      select q.name from queued q\n      union\n",
        "knows queues where jobs run": "      select l.name from leased l\n      union\n",
        "knows queues where jobs have failed": "      select e.name from ended e\n      union\n",
    },
    "roll_up": {
        "is done by one": ("not pg_try_advisory_xact_lock(hashtextextended('faultline roll_up', 0))", "false"),
        "lets nobody wait": (
            "pg_try_advisory_xact_lock(hashtextextended('faultline roll_up', 0))",
            "(pg_advisory_xact_lock(hashtextextended('faultline roll_up', 0)) is not null)",
        ),
        "leaves the last hour alone": ("o.worker <> '' and o.minute < $1 - interval '1 hour'", "o.worker <> ''"),
        "leaves what is rolled up alone": ("o.worker <> '' and o.minute", "o.minute"),
        "takes no more than it was asked for": (
            "o.minute < $1 - interval '1 hour'\n      limit $2",
            "o.minute < $1 - interval '1 hour'",
        ),
        "leaves the sum of all time alone": (" and o.minute > '-infinity' and", " and"),
        "keeps the minutes of a day": ("$1 - interval '25 hours' then '-infinity'", "$1 then '-infinity'"),
        "sums over all time in the end": (
            "case when o.minute < $1 - interval '25 hours' then '-infinity' else o.minute end",
            "o.minute",
        ),
        "forgets old samples only": (
            "o.queue = f.name and o.minute < at - interval '25 hours'\n    limit",
            "o.queue = f.name\n    limit",
        ),
        "adds to what was summed": ("t.%1$I + excluded.%1$I", "excluded.%1$I"),
        "sums over the workers": ("sum(o.%I)", "max(o.%I)"),
        "sums every count": "'bigint'::regtype, ",
        "sums every sum of seconds": ", 'float8'::regtype",
    },
    "heartbeat": {
        **{
            f"tells the newest {name}": (f"{name} = excluded.{name}", f"{name} = w.{name}")
            for name in ("leases", "clock_ahead_seconds")
        },
        "answers with the time": ("return faultline.clock();", "return 'epoch'::timestamptz;"),
        "wants the id of a worker": (
            "perform faultline.check_name('the id of a worker', heartbeat.worker_id, 100, known => true);",
            "null;",
        ),
        "wants an id that owners can begin with": ("position('/' in heartbeat.worker_id) > 0", "false"),
        "wants all but the clock": ("num_nulls(", "0 * num_nulls("),
    },
    "announce": {
        "stores the newest tasks": ("set tasks = announce.tasks", "set tasks = w.tasks"),
        "changes this worker only": ("where w.id = announce.worker_id\n    and", "where"),
        "writes nothing that is known": _IS_NEWS,
        "stores how many connections": (
            "connections_max = announce.connections_max",
            "connections_max = w.connections_max",
        ),
        "writes a new number of connections": (_IS_NEWS, "    and w.tasks is distinct from announce.tasks"),
        "knows who is on the list": ("w where w.id = announce.worker_id);", "w);"),
    },
}
