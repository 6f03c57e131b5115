"""The guards of what goes into a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

GUARDS: Guards = {
    "read_jobs": {
        "wants an array": ("json_typeof(document) is distinct from 'array'", "false"),
        "wants objects": ("where json_typeof(j.value) <> 'object' or", "where"),
        "knows every field": " or k.name <> all (fields)",
        "knows what no job is given": (
            "    where f.name not in ('created_at', 'next_run_at', 'group_key', 'in_group', 'group_at', 'unique_key')\n",
            "",
        ),
        "takes nothing that cannot be compared": ("perform document::jsonb, count", "perform count"),
        "takes no value of another type": (
            (
                ", count(p.task), max(p.next_run_at)\n"
                "    from faultline.parse_new_jobs(document, read_jobs.at, read_jobs.args_bytes_max) p;"
            ),
            ";",
        ),
        "keeps the text of the arguments": (":= read_jobs.jobs::json;", ":= read_jobs.jobs::jsonb;"),
        "names the first job that is wrong": "        exit;\n",
    },
    "enqueue_many": {
        "takes no key on trust": ("if some_key is not null then", "if false then"),
        "takes no escape on trust": "\\\\u|",
        "takes no exponent on trust": "[eE][+-]?[0-9]{4,}[],}[:space:]]|",
        "takes no long number on trust": "|[0-9]{100}",
        "inserts nothing on trust unless asked": ("if enqueue_many.fresh then", "if true then"),
        "believes that the jobs appear late": "enqueue_many.appears_late\n    or ",
        "knows a transaction that has written": "    or pg_current_xact_id_if_assigned() is not null\n",
        "knows a transaction that has lasted": (
            "\n    or statement_timestamp() - transaction_timestamp() > interval '5 milliseconds'",
            "",
        ),
        "wakes who sleeps": "served.name = any (w.sleeping) or",
        "wakes nobody who is awake": ("where served.name = any (w.sleeping) or", "where true or"),
        "notifies of jobs in the past": " or lowest_run_at < at",
        "notifies of jobs that appear late": (" or late\n", "\n"),
        "wakes nobody for delayed jobs": ("where lowest_run_at <= at\n    and", "where"),
        "wakes only queues with new jobs": "\n    and q.name between first_queue and last_queue",
        "notifies of jobs that had to wait": (
            "  late := late or clock_timestamp() - statement_timestamp() > interval '50 milliseconds';\n",
            "",
        ),
        "names no worker that would not fit": " and octet_length(to_json(w.id)::text) <= 100",
        "wakes some for a few jobs": ("transaction_timestamp()), q.chosen,", "transaction_timestamp()), null,"),
        "names the new jobs": ("(false = any (news)) then ids end", "(false = any (news)) then null::uuid[] end"),
        "names no jobs of other queues": ("case when first_queue = last_queue and not (false", "case when not (false"),
        "names no jobs that are known": (" and not (false = any (news)) then", " then"),
        "wakes all for many jobs": (" and cardinality(ids) <= 20 then", " then"),
        "wakes all for jobs in the past": ("when lowest_run_at = at and not late and", "when not late and"),
        "wakes all for jobs that appear late": (" and not late and", " and"),
        "wakes more than there are jobs": ("cardinality(ids) + 2]", "cardinality(ids)]"),
        "wakes who was seen lately": "w.heartbeat_at > at - interval '3 seconds' and ",
        "wakes now these and now those": ("order by random())", "order by w.id)"),
        "wakes no queue in between": ("first_queue = last_queue or exists (", "true or exists ("),
        "notifies the lowest position of a longer transaction": (
            "least(lowest_run_at, transaction_timestamp())",
            "lowest_run_at",
        ),
        "sees time go on in a loop": (
            "at constant timestamptz := faultline.clock();",
            "at constant timestamptz := faultline.now();",
        ),
        "keeps the text of the arguments": (":= enqueue_many.jobs::json;", ":= enqueue_many.jobs::jsonb;"),
    },
    "enqueue": {
        "hands on the arguments": "          'args', enqueue.args::json,\n",
        "hands on the queue": "          'queue', enqueue.queue,\n",
        "hands on the priority": "          'priority', enqueue.priority,\n",
        "hands on the delay": "          'delay_seconds', extract(epoch from enqueue.delay),\n",
        "hands on the time": "          'run_at', enqueue.run_at,\n",
        "hands on the attempts": "          'max_attempts', enqueue.max_attempts,\n",
        "hands on the lease": "          'lease_seconds', extract(epoch from enqueue.lease),\n",
        "hands on the key": "          'idempotency_key', enqueue.idempotency_key,\n",
        "hands on the id": "          'id', enqueue.id,\n",
        "hands on what is to be kept": ",\n          'keep_args', enqueue.keep_args",
        "inserts no known key": ("enqueue.idempotency_key is null", "true"),
        "inserts no known id": ("enqueue.id is null", "true"),
        "inserts no task with no or a long name": ("length(enqueue.task) between 1 and 200", "true"),
        "inserts no queue with no or a long name": ("length(enqueue.queue) between 1 and 100", "true"),
        "inserts no priority out of bounds": ("enqueue.priority between -1000 and 1000", "true"),
        "inserts no attempts out of bounds": ("enqueue.max_attempts between 1 and 1000", "true"),
        "inserts no lease out of bounds": ("extract(epoch from enqueue.lease) between 0.1 and 86400", "true"),
        "inserts no delay out of bounds": (
            "(enqueue.delay is null or extract(epoch from enqueue.delay) between 0 and 315360000)",
            "true",
        ),
        "inserts no time out of bounds": (
            "(enqueue.run_at is null or enqueue.run_at between '1970-01-01Z' and '9999-01-01Z')",
            "true",
        ),
        "inserts no delay beside a time": ("(enqueue.delay is null or enqueue.run_at is null)", "true"),
        "inserts no arguments that are too large": "    and fits\n",
        "inserts no arguments that are no object": "    and is_object\n",
        "inserts no arguments that cannot be compared": (
            "jsonb_typeof(enqueue.args::jsonb)",
            "json_typeof(enqueue.args::json)",
        ),
        "takes json": ("select faultline.enqueue(\n    $1, $2::text", "select faultline.enqueue(\n    $1, '{}'::text"),
        "inserts the time": ("coalesce(enqueue.run_at, at", "coalesce(at"),
        "inserts the delay": ("at + make_interval(secs => extract(epoch from enqueue.delay)::float8), at", "at"),
        "sees time go on in a loop": (
            "at constant timestamptz := faultline.clock();",
            "at constant timestamptz := faultline.now();",
        ),
    },
    # Every reason to refuse a job of a submission stands here once.
    "parse_new_jobs": {
        "keeps no long trace": ("left(j.trace, 55) as trace", "j.trace as trace"),
        "keeps the trace": ("left(j.trace, 55) as trace", "null as trace"),
        "refuses a job without a task": (
            "coalesce(length(j.task), 0) not between 1 and 200",
            "length(j.task) not between 1 and 200",
        ),
        "refuses a task with no or a long name": ("coalesce(length(j.task), 0) not between 1 and 200", "j.task is null"),
        "refuses a queue with no or a long name": "or length(j.queue) not between 1 and 100",
        "refuses arguments that are no object": "or json_typeof(j.args) not in ('object', 'null')",
        "refuses arguments that are too large": "or octet_length(j.args::text) > parse_new_jobs.args_bytes_max",
        "refuses an empty or long key": "or length(j.idempotency_key) not between 1 and 500",
        "refuses a priority out of bounds": "or j.priority not between -1000 and 1000",
        "refuses half a priority": "or j.priority % 1 <> 0",
        "refuses attempts out of bounds": "or j.max_attempts not between 1 and 1000",
        "refuses half an attempt": "or j.max_attempts % 1 <> 0",
        "refuses a lease out of bounds": "or j.lease_seconds not between 0.1 and 86400",
        "refuses a delay out of bounds": "or j.delay_seconds not between 0 and 315360000",
        "refuses a delay beside a run_at": "or (j.delay_seconds is not null and j.run_at is not null)",
        "refuses a run_at without a zone": "or j.run_at !~ '([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)$'",
        "refuses a run_at out of bounds": "or j.run_at::timestamptz not between '1970-01-01Z' and '9999-01-01Z'",
    },
    "insert_or_find_jobs": {
        "keeps the digest given": ("p.args, g.digest)", "p.args)"),
        "keeps the digest of each key": ("row_number() over ()", "row_number() over (order by n.id desc)"),
        "takes keys in one order": "    order by p.idempotency_key, p.ordinal\n",
        "gives a key to the first that has it": (
            "order by p.idempotency_key, p.ordinal",
            "order by p.idempotency_key, p.ordinal desc",
        ),
        "takes ids in one order": "    order by p.id\n",
        "lets a key stand once": "    on conflict (key) do nothing\n",
        "lets an id stand once": "    on conflict (id) do nothing\n",
        "makes no job for a known key": (
            "and (p.idempotency_key is null or p.id in (select t.job_id from taken t))",
            "",
        ),
        "wants to see what has finished meanwhile": (
            "if named and current_setting('transaction_isolation') <> 'read committed' then",
            "if false then",
        ),
        "refuses the same id twice": (
            "if cardinality(array_positions(news, true)) > cardinality(inserted) then",
            "if false then",
        ),
        "looks into the ledger after it has inserted": (
            "  news := faultline.delete_already_completed(ids, news);\n",
            (
                "  delete from faultline.open_jobs j where j.id = any (done);\n"
                "  news := array(select n.new and n.id <> all (done) from unnest(ids, news)"
                " with ordinality as n (id, new, place) order by n.place);\n"
            ),
            (
                "  named boolean;\n",
                (
                    "  named boolean;\n  done constant uuid[] := array(select f.job_id from faultline.ledger f"
                    " where f.job_id in (select (e ->> 'id')::uuid from json_array_elements(insert_or_find_jobs.jobs) e));\n"
                ),
            ),
        ),
        "looks into the ledger": "  news := faultline.delete_already_completed(ids, news);\n",
        "looks for what is known": (
            (
                "select r.ids, r.news into ids, news from faultline.resolve_known(insert_or_find_jobs.jobs, ids, news,"
                " answered) r;\n"
            ),
            "null;\n",
        ),
    },
    "views.sql": {
        "jobs: shows the trace": ("as result, j.trace", "as result, null::text as trace"),
    },
    "digest": {
        "knows the task": ("task || e'\\n' || args::jsonb::text", "args::jsonb::text"),
        "knows the arguments": ("task || e'\\n' || args::jsonb::text", "task"),
        "asks what the arguments mean": ("args::jsonb::text", "args::text"),
        "knows what was given": (
            "coalesce(given, task || e'\\n' || args::jsonb::text)",
            "task || e'\\n' || args::jsonb::text",
        ),
    },
    "resolve_known": {
        "compares the digest given": ("a.args, j.digest) as key_digest", "a.args) as key_digest"),
        "refuses other work under a known key": ("k.digest <> s.key_digest", "false"),
        "refuses other work under the id of an open job": ("faultline.digest(o.task, o.args) <> s.digest\n", "false\n"),
        "refuses other work under the id of a done job": "or faultline.digest(f.task, f.args) <> s.digest",
        "knows a job without arguments by its task": ("          or f.task <> s.task\n", ""),
        "knows that no arguments are an empty object": (
            "case when json_typeof(j.args) = 'object' then j.args else '{}' end as args",
            "j.args",
        ),
        "answers with the job of the key": ("coalesce(k.job_id, s.id) as job_id", "s.id as job_id"),
        "notices a job that was pruned meanwhile": ("if not known.found then", "if false then"),
    },
    "delete_already_completed": {
        "takes back what was done before": "  delete from faultline.open_jobs j where j.id = any (finished);\n",
        "says that it is not new": ("u.new and u.id <> all (finished)", "u.new"),
    },
    "reject_job": {
        "refuses the job": ("  raise exception 'job %", "  return task; raise exception 'job %"),
    },
    "wake": {
        "can be done without": ("where coalesce(current_setting('faultline.notify', true), '') <> 'off'", "where true"),
        "names the queue": ("'queue', queue", "'queue', ''"),
        "names the priority": ("'priority', priority", "'priority', 0"),
        "names the position": ("'run_at', run_at", "'run_at', null"),
        "names jobs to the chosen only": ("case when chosen is not null then job_ids end", "job_ids"),
    },
    "wake_for": {
        "wakes for its own jobs": "    where j.id = any (wake_for.job_ids)\n",
        "wakes for waiting jobs only": "k.state = 'queued' and ",
        "wakes for due jobs only": " and k.next_run_at <= faultline.clock()",
        "notifies the most urgent": ("min(k.priority)", "max(k.priority)"),
        "notifies the longest due": ("min(k.next_run_at)", "max(k.next_run_at)"),
    },
    "insert_one": {
        "wakes nobody for delayed jobs": ("if insert_one.due > insert_one.at then", "if false then"),
        "tells of jobs in the past": (
            "late constant boolean := insert_one.due < insert_one.at\n    or",
            "late constant boolean :=",
        ),
        "knows a transaction that has written": "    or pg_current_xact_id_if_assigned() is not null\n",
        "knows a transaction that has lasted": (
            "\n    or statement_timestamp() - transaction_timestamp() > interval '5 milliseconds'"
        ),
        "knows a loop that has lasted": " or clock_timestamp() - statement_timestamp() > interval '50 milliseconds'",
        "notifies no other worker": ("insert_one.queue = any (w.queues)", "true"),
        "notifies the lowest position of a longer transaction": (
            "insert_one.queue, insert_one.priority, least(insert_one.due, transaction_timestamp())\n      );",
            "insert_one.queue, insert_one.priority, insert_one.due\n      );",
        ),
        "wakes nobody who is awake": ("insert_one.queue = any (w.sleeping)", "insert_one.queue = any (w.queues)"),
        "names no worker that would not fit": " and octet_length(to_json(w.id)::text) <= 100",
        "wakes now these and now those": ("order by random()", "order by w.id"),
        "wakes a few": ("))[:3]", "))[:30]"),
        "names the new job": (", array[insert_one.id]\n", "\n"),
        "wakes who was seen lately": ("w.heartbeat_at > insert_one.at - interval '3 seconds' and ", ""),
        "keeps the trace": ("insert_one.args::json,\n    insert_one.trace\n", "insert_one.args::json,\n    null\n"),
    },
    "enqueue_one": {
        "inserts no id that may be known": ("    enqueue_one.fresh\n    and ", "    "),
        "inserts no id that is not in the order of time": "    and faultline.is_time_ordered(enqueue_one.id)\n",
        "inserts no task with no or a long name": "    and length(enqueue_one.task) between 1 and 200\n",
        "inserts no queue with no or a long name": "    and length(enqueue_one.queue) between 1 and 100\n",
        "inserts no queue whose name hides something": (
            "    and not faultline.is_unreadable(enqueue_one.queue, trimmed => true)\n"
        ),
        "inserts no arguments that are too large": "    and fits\n",
        "inserts no arguments that begin with space": ("left(enqueue_one.args, 1) = '{' and ", ""),
        "inserts no arguments that end with space": (" and right(enqueue_one.args, 1) = '}'", ""),
        "inserts no arguments that cannot be compared": (
            "    and enqueue_one.args !~ E'\\\\\\\\u|[eE][+-]?[0-9]{4,}[],}[:space:]]|[0-9]{100}'\n"
        ),
        "inserts no priority out of bounds": "    and enqueue_one.priority between -1000 and 1000\n",
        "inserts no attempts out of bounds": "    and enqueue_one.max_attempts between 1 and 1000\n",
        "inserts no lease out of bounds": "    and enqueue_one.lease_seconds between 0.1 and 86400\n",
        "keeps no long trace": ("left(enqueue_one.trace, 55)", "enqueue_one.trace"),
        "sees time go on in a loop": (
            "at constant timestamptz := faultline.clock();",
            "at constant timestamptz := faultline.now();",
        ),
        "hands on the id": "        'id', enqueue_one.id,\n",
        "hands on the arguments": "        'args', document,\n",
        "hands on the queue": "        'queue', enqueue_one.queue,\n",
        "hands on the priority": "        'priority', enqueue_one.priority,\n",
        "hands on the attempts": "        'max_attempts', enqueue_one.max_attempts,\n",
        "hands on the lease": "        'lease_seconds', enqueue_one.lease_seconds,\n",
        "hands on what is to be kept": "        'keep_args', enqueue_one.keep_args,\n",
        "hands on the trace": (",\n        'trace', enqueue_one.trace\n", "\n"),
        "says whether it is new": ("select e.created\n", "select true\n"),
    },
}

SINCE_18: Guards = {"new_id": {"makes ids in the order of time": ("return uuidv7();", "return gen_random_uuid();")}}
BEFORE_18: Guards = {
    # Since then the planner finds the ids by itself.
    "wake_for": {"looks only at its own jobs": "    offset 0\n"},
    "new_id": {
        "makes ids in the order of time": ("lpad(to_hex(micros / 1000), 12, '0')", "left(random_bits, 12)"),
        "keeps the order of one statement": (
            "to_hex(8 + ((ordinal >> 16) & 3)) || lpad(to_hex(ordinal & 65535), 4, '0')",
            "'8' || left(random_bits, 4)",
        ),
    },
}
