"""The guards of what the HTTP service asks for: the queues of a key, jobs retried together, keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

GUARDS: Guards = {
    "not_open": {
        "knows no done jobs of other queues": (
            "(not_open.only_queues is null or f.queue = any (not_open.only_queues))",
            "true",
        ),
    },
    "cancel": {
        "knows no jobs of other queues": ("(cancel.only_queues is null or j.queue = any (cancel.only_queues))", "true"),
        "hands its queues on": ("'cancelled', cancel.only_queues", "'cancelled'"),
    },
    "cancel_jobs": {
        "takes nothing when asked for nothing": ("greatest(coalesce(cancel_jobs.max_jobs, 0), 0)", "1000"),
        "takes at most 1,000 jobs": (", 0), 0), 1000)", ", 0), 0), 2000)"),
        "passes over what has ended": (
            "where s.state in ('queued', 'running')\n      and",
            "where",
            ("\n      and j.state in ('queued', 'running')", ""),
        ),
        "looks at 10,000 jobs": "    limit 10000\n",
        "goes on behind a cursor": "    where j.id < cancel_jobs.before_id\n",
        "takes the newest first": ("    order by j.id desc\n    limit", "    order by j.id\n    limit"),
        "keeps to the queue": ("cancel_jobs.queue is null or s.queue = cancel_jobs.queue", "true"),
        "keeps to the task": ("cancel_jobs.task is null or s.task = cancel_jobs.task", "true"),
        "keeps to the group": (
            "cancel_jobs.group_key is null or s.group_key = cancel_jobs.group_key",
            "true",
            ("cancel_jobs.group_key is null or j.group_key = cancel_jobs.group_key", "true"),
        ),
        "keeps to the state": (
            "cancel_jobs.state is null or s.state = cancel_jobs.state",
            "true",
            ("cancel_jobs.state is null or j.state = cancel_jobs.state", "true"),
        ),
        "knows no jobs of other queues": (
            "cancel_jobs.only_queues is null or s.queue = any (cancel_jobs.only_queues)",
            "true",
        ),
        "says that there is more in the batch": (
            "(select f.id from fitting f order by f.position offset greatest(most - 1, 0) limit 1)",
            "null",
        ),
        "says that there is more behind the window": ("(select s.id from seen s where s.position = 10000)", "null"),
        "locks the rows": "    for update skip locked\n",
        "passes over locked rows": ("for update skip locked", "for update"),
    },
    "retry": {
        "knows no jobs of other queues": ("(retry.only_queues is null or j.queue = any (retry.only_queues))", "true"),
        "hands its queues on": ("'retried', retry.only_queues", "'retried'"),
    },
    "retry_failed": {
        "takes nothing when asked for nothing": ("greatest(coalesce(retry_failed.max_jobs, 0), 0)", "1000"),
        "takes at most 1,000 jobs": (", 0), 0), 1000)", ", 0), 0), 2000)"),
        "retries failed jobs only": (
            "where s.state = 'failed'\n      and",
            "where",
            ("where j.id = any (chosen) and j.state = 'failed'", "where j.id = any (chosen)"),
        ),
        "looks at 10,000 jobs": "    limit 10000\n",
        "goes on behind a cursor": (
            "      and j.finished_at <= retry_failed.before_at\n"
            "      and (j.finished_at, j.id) < (retry_failed.before_at, retry_failed.before_id)\n"
        ),
        "goes on within one moment": (
            "(j.finished_at, j.id) < (retry_failed.before_at, retry_failed.before_id)",
            "j.finished_at < retry_failed.before_at",
        ),
        "takes the newest first": (
            "    order by j.finished_at desc, j.id desc\n    limit",
            "    order by j.finished_at, j.id\n    limit",
        ),
        "keeps to the queue": ("retry_failed.queue is null or s.queue = retry_failed.queue", "true"),
        "keeps to the task": ("retry_failed.task is null or s.task = retry_failed.task", "true"),
        "keeps to the error": (
            "retry_failed.error_prefix is null or starts_with(s.last_error, retry_failed.error_prefix)",
            "true",
        ),
        "keeps to the kind of error": (
            "retry_failed.error_kind is null or faultline.error_kind(s.last_error) = retry_failed.error_kind",
            "true",
        ),
        "knows no jobs of other queues": (
            "retry_failed.only_queues is null or s.queue = any (retry_failed.only_queues)",
            "true",
        ),
        "says that there is more in the batch": (
            "coalesce(full_batch.finished_at, full_window.finished_at)",
            "full_window.finished_at",
        ),
        "says that there is more behind the window": (
            "coalesce(full_batch.finished_at, full_window.finished_at)",
            "full_batch.finished_at",
        ),
        "locks the rows": "    for update skip locked\n",
        "passes over locked rows": ("for update skip locked", "for update"),
    },
    "error_kind": {
        "leaves quoted text out": '"[^"]*("|$)|',
        "leaves text in single quotes out": "(?<!\\w)''[^'']*(''|$)|",
        "knows an apostrophe": "(?<!\\w)",
        "leaves words with a digit out": "|[-\\w]*[0-9][-\\w.:]*",
        "leaves an id out as a whole": ("[-\\w]*[0-9][-\\w.:]*", "[0-9]+"),
        "reads the first line": ("e'\\n', 1)", "e'\\n', 2)"),
        "reads 300 characters": ("left(coalesce(error, ''), 300)", "left(coalesce(error, ''), 160)"),
        "compares 150 characters": ("  150\n", "  300\n"),
        "knows that no error is one, too": ("coalesce(error, '')", "error"),
    },
    "api_key": {
        "lets no revoked key in": ("    and k.revoked_at is null\n    and (", "    and ("),
        "lets no key in past its time": ("k.expires_at is null or k.expires_at > faultline.clock()", "true"),
        "wants the very key": ("where k.digest = api_key.digest\n    and", "where"),
        "notes its use": (
            "set last_used_at = date_trunc('minute', faultline.now())",
            "set last_used_at = k.last_used_at",
        ),
        "notes the minute once": "\n        and u.last_used_at is distinct from date_trunc('minute', faultline.now())",
        "notes no use of a revoked key": "\n        and u.revoked_at is null",
        "notes the use of the very key": ("where u.digest = api_key.digest\n        and", "where"),
        "waits for nobody": "      for no key update skip locked\n",
        "notes nothing where nothing can be written": ("current_setting('transaction_read_only') = 'off'", "true"),
    },
    "add_api_key": {
        "counts from the database's clock": ("at, at + add_api_key.valid\n", "at, null\n"),
    },
    "revoke_api_key": {
        "keeps the time of the first": " and k.revoked_at is null",
        "revokes the named key only": ("k.id = revoke_api_key.id and k.revoked_at", "k.revoked_at"),
    },
}
