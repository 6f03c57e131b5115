"""The guards of unique jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

GUARDS: Guards = {
    "supersede": {
        "knows the task": (" and k.task = j.task offset 0", " offset 0"),
        "leaves what is due sooner": ("      and o.due <= greatest(j.next_run_at, faultline.clock())\n", ""),
        "lets nobody expire who is relied on": ("    set expires_at = null\n", "    set expires_at = o.expires_at\n"),
        "lets its group see who no longer expires": "    perform faultline.insert_arrival_events(renewed);\n",
        "wakes workers for who no longer expires": "    perform faultline.wake_for(renewed);\n",
        "relies on nobody whom another is ending": ("      for update skip locked\n", "      offset 0\n"),
    },
    "renew_unique": {
        "gives it the new group": ("case when replaces then renew_unique.group_key else j.group_key end", "j.group_key"),
        "leaves the old group": (" or replaces and was.group_key is distinct from renew_unique.group_key", ""),
        "gives back what it kept": "      state = j.state,\n",
        "lets its group see who expires later": "    perform faultline.insert_arrival_events(array[renew_unique.job_id]);\n",
    },
    "insert_unique_jobs": {},
    "has_expired": {
        "knows what was claimed before": " and fencing_token = 0",
        "looks at the time": " and expires_at <= at",
    },
    "busy_jobs": {
        "waits for none that has expired": (
            "        where faultline.has_expired(j.state, j.fencing_token, j.expires_at, faultline.clock())\n",
            "        where false\n",
        ),
    },
    "free_permits": {
        "keeps nothing of a group that it leaves": (" and new.group_key = old.group_key", ""),
    },
    "prune_failed": {
        "forgets the key of a failed job": (
            "  perform faultline.free_keys(ended.ids, ended.queues, ended.keys, ended.tasks);\n",
            "",
            ("k.key = j.unique_key and k.task = j.task and k.job_id = j.id", "false"),
        ),
        "keeps a failed job whose key is held": ("k.key = j.unique_key and k.task = j.task and k.job_id = j.id", "false"),
    },
    "prune_unique_keys": {
        "puts keys of open jobs behind the others": (
            "set until = faultline.clock() + interval '1 hour'",
            "set until = k.until",
        ),
    },
    "forget_jobs": {
        "forgets the key of a failed job": "  perform faultline.free_keys(gone.ids, gone.queues, gone.keys, gone.tasks);\n",
    },
    "free_keys": {
        "leaves a key that somebody holds": ("      for update skip locked\n", "      for update\n"),
        "leaves a key that names another job": (" and k.job_id = e.id\n", "\n"),
    },
    "requeue_ended_jobs": {
        "gives retried jobs their keys": "    perform faultline.reclaim_unique_keys(unique_ids);\n",
        "leaves one that waits": "    perform faultline.supersede(unique_ids);\n",
    },
    "reclaim_unique_keys": {
        "leaves a key that another waits under": (
            "      and not exists (\n        select from faultline.open_jobs o",
            "      and true or exists (\n        select from faultline.open_jobs o",
        ),
        "leaves a key that a submission holds": (
            "    where not exists (\n      select from faultline.unique_keys k",
            "    where true or not exists (\n      select from faultline.unique_keys k",
        ),
        "looks for a lock and does not wait": ("    for update skip locked;\n", "    for update;\n"),
    },
    "parse_new_jobs": {
        "knows that a debounce is a delay": (
            "coalesce(j.delay_seconds, (j.\"unique\" ->> 'debounce')::numeric)",
            "j.delay_seconds",
        ),
    },
    "still_stands": {
        "is not answered with one that has expired, nor counts its period": (
            " or faultline.has_expired(j.state, j.fencing_token, j.expires_at, still_stands.at)",
            "",
        ),
    },
}
