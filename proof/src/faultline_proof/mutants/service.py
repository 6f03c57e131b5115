"""The guards of what the HTTP service asks for: the queues of a key, jobs retried together, keys."""

from __future__ import annotations

from faultline_proof.mutants.texts import Cut

_BOUND = [
    *(
        Cut(
            verb,
            "knows no jobs of other queues",
            f"({verb}.only_queues is null or j.queue = any ({verb}.only_queues))",
            "true",
        )
        for verb in ("cancel", "retry")
    ),
    Cut(
        "not_open",
        "knows no done jobs of other queues",
        "(not_open.only_queues is null or f.queue = any (not_open.only_queues))",
        "true",
    ),
    Cut("cancel", "hands its queues on", "'cancelled', cancel.only_queues", "'cancelled'"),
    Cut("retry", "hands its queues on", "'retried', retry.only_queues", "'retried'"),
]

_RETRY_FAILED = [
    Cut("retry_failed", "takes nothing when asked for nothing", "greatest(coalesce(retry_failed.max_jobs, 0), 0)", "1000"),
    Cut("retry_failed", "takes at most 1,000 jobs", ", 0), 0), 1000)", ", 0), 0), 2000)"),
    Cut(
        "retry_failed",
        "retries failed jobs only",
        "where s.state = 'failed'\n      and",
        "where",
        also=("where j.id = any (chosen) and j.state = 'failed'", "where j.id = any (chosen)"),
    ),
    Cut("retry_failed", "looks at 10,000 jobs", "    limit 10000\n"),
    Cut(
        "retry_failed",
        "goes on behind a place",
        "      and j.finished_at <= retry_failed.before_at\n"
        "      and (j.finished_at, j.id) < (retry_failed.before_at, retry_failed.before_id)\n",
    ),
    Cut(
        "retry_failed",
        "goes on within one moment",
        "(j.finished_at, j.id) < (retry_failed.before_at, retry_failed.before_id)",
        "j.finished_at < retry_failed.before_at",
    ),
    Cut(
        "retry_failed",
        "takes the newest first",
        "    order by j.finished_at desc, j.id desc\n    limit",
        "    order by j.finished_at, j.id\n    limit",
    ),
    Cut("retry_failed", "keeps to the queue", "retry_failed.queue is null or s.queue = retry_failed.queue", "true"),
    Cut("retry_failed", "keeps to the task", "retry_failed.task is null or s.task = retry_failed.task", "true"),
    Cut(
        "retry_failed",
        "keeps to the error",
        "retry_failed.error_prefix is null or starts_with(s.last_error, retry_failed.error_prefix)",
        "true",
    ),
    Cut(
        "retry_failed",
        "keeps to the kind of error",
        "retry_failed.error_kind is null or faultline.error_kind(s.last_error) = retry_failed.error_kind",
        "true",
    ),
    Cut("error_kind", "leaves quoted text out", '"[^"]*("|$)|'),
    Cut("error_kind", "leaves text in single quotes out", "(?<!\\w)''[^'']*(''|$)|"),
    Cut("error_kind", "knows an apostrophe", "(?<!\\w)", ""),
    Cut("error_kind", "leaves words with a digit out", "|[-\\w]*[0-9][-\\w.:]*"),
    Cut("error_kind", "leaves an id out as a whole", "[-\\w]*[0-9][-\\w.:]*", "[0-9]+"),
    Cut("error_kind", "reads the first line", "e'\\n', 1)", "e'\\n', 2)"),
    Cut("error_kind", "reads 300 characters", "left(coalesce(error, ''), 300)", "left(coalesce(error, ''), 160)"),
    Cut("error_kind", "compares 150 characters", "  150\n", "  300\n"),
    Cut("error_kind", "knows that no error is one, too", "coalesce(error, '')", "error"),
    Cut(
        "retry_failed",
        "knows no jobs of other queues",
        "retry_failed.only_queues is null or s.queue = any (retry_failed.only_queues)",
        "true",
    ),
    Cut(
        "retry_failed",
        "says that there is more in the batch",
        "coalesce(full_batch.finished_at, full_window.finished_at)",
        "full_window.finished_at",
    ),
    Cut(
        "retry_failed",
        "says that there is more behind the window",
        "coalesce(full_batch.finished_at, full_window.finished_at)",
        "full_batch.finished_at",
    ),
    Cut("retry_failed", "locks the rows", "    for update skip locked\n"),
    Cut("retry_failed", "passes over locked rows", "for update skip locked", "for update"),
]

_KEYS = [
    Cut("api_key", "lets no revoked key in", "    and k.revoked_at is null\n    and (", "    and ("),
    Cut("api_key", "lets no key in past its time", "k.expires_at is null or k.expires_at > faultline.clock()", "true"),
    Cut("api_key", "wants the very key", "where k.digest = api_key.digest\n    and", "where"),
    Cut(
        "api_key",
        "notes its use",
        "set last_used_at = date_trunc('minute', faultline.now())",
        "set last_used_at = k.last_used_at",
    ),
    Cut(
        "api_key",
        "notes the minute once",
        "\n        and u.last_used_at is distinct from date_trunc('minute', faultline.now())",
    ),
    Cut("api_key", "notes no use of a revoked key", "\n        and u.revoked_at is null"),
    Cut("api_key", "notes the use of the very key", "where u.digest = api_key.digest\n        and", "where"),
    Cut("api_key", "waits for nobody", "      for no key update skip locked\n"),
    Cut("api_key", "notes nothing where nothing can be written", "current_setting('transaction_read_only') = 'off'", "true"),
    Cut("add_api_key", "counts from the database's clock", "at, at + add_api_key.valid\n", "at, null\n"),
    Cut("revoke_api_key", "keeps the time of the first", " and k.revoked_at is null"),
    Cut("revoke_api_key", "revokes the named key only", "k.id = revoke_api_key.id and k.revoked_at", "k.revoked_at"),
]

CUTS = [*_BOUND, *_RETRY_FAILED, *_KEYS]
