"""The guards of what happens to groups: who tells of it, what is given back, and how claims hear of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

GUARDS: Guards = {
    "apply_group_events": {
        "hears everything in another cluster": ("limited_queue.cluster <> cluster or ", ""),
        "hears what was open": ("      where x.xid < limited_queue.seen_to\n", "      where false\n"),
        "hears of permits beside what came in": (
            "from (values (false), (true)) as k (arrival)\n    cross",
            "from (values (true)) as k (arrival)\n    cross",
        ),
        "puts who is heard of later behind": "    limited_queue.arrival_virtual_time := limited_queue.arrival_virtual_time +"
        " cardinality(heard.group_keys) * 1e-9;\n",
        "frees permits of the queue": ("greatest(0, limited_queue.holding - heard.freed)", "limited_queue.holding"),
        "hears of about a thousand groups": (" < apply_group_events.most as is_taken", " < 1e9 as is_taken"),
        "goes on with what is left": (
            "least(heard.left_from, pg_snapshot_xmax(heard.snapshot))",
            "pg_snapshot_xmax(heard.snapshot)",
        ),
        "looks from here on where there was nothing": ("    if limited_queue.seen_to = '0' then\n", "    if false then\n"),
        "keeps what is open where there was nothing": ("faultline.open_xids(before, limited_queue.seen_to)", "'{}'"),
        "has looked what is open before it looks for events": (
            "pg_snapshot_xmax(before)",
            "pg_snapshot_xmax(pg_current_snapshot())",
            ("faultline.open_xids(before, ", "faultline.open_xids(pg_current_snapshot(), "),
        ),
    },
    "apply_events_to_groups": {
        "counts what ran before there were limits": ("k.freed_group <> 0 or", "k.freed_group > 0 or"),
        "gives no turn to an empty group": (
            " and (coalesce(g.has_waiting, false) or j.priority is not null) as may_start",
            " as may_start",
        ),
        "gives a turn only where there is room": ("h.holding < l.cap and", "true and"),
        "gives a turn only where there is a token": ("k.may_start and (k.tokens < 1) is not true", "k.may_start"),
        "looks again when there is a token": ("due + make_interval(secs => (1 - k.tokens) / k.rate)", "null"),
        "takes in no group whose jobs are gone": (
            "where s.priority is not null and exists (",
            "where s.priority is not null or exists (",
        ),
        "takes in no group whose jobs have expired": (
            "          and (r.expires_at is null or r.expires_at > apply_events_to_groups.due or r.fencing_token > 0)\n",
            "",
        ),
        "counts nobody below zero": (
            "greatest(0, coalesce(g.holding, 0) - s.freed_group)",
            "coalesce(g.holding, 0) - s.freed_group",
        ),
        "lowers the head": (
            "case when (k.priority, k.run_at) < (g.head_priority, g.head_at) then k.run_at else g.head_at end",
            "g.head_at",
        ),
        "puts who comes in behind those who wait": ("greatest(g.virtual_time, k.arrival_virtual_time)", "g.virtual_time"),
        "puts who comes in for the first time behind those who wait": (
            "k.holding / k.weight, k.arrival_virtual_time, k.priority",
            "k.holding / k.weight, 0, k.priority",
        ),
        "puts who comes in behind who came in before": (
            "limited_queue.arrival_virtual_time + row_number() over (order by s.run_at, s.group_key) * 1e-9",
            "limited_queue.virtual_time",
        ),
    },
    "insert_group_events": {
        "tells permits from what came in": ("coalesce(bool_and(g.freed_group = 0), true)", "true"),
        "tells of a hundred groups at a time": ("- 1) / 100 as part", "- 1) / 100000 as part"),
    },
    "open_xids": {
        "keeps its own number": (" || pg_current_xact_id()", ""),
        "leaves other databases out": ("cardinality(found) > 50", "false"),
        "keeps what is open": (
            "array(select x.xid from pg_snapshot_xip(snapshot) as x (xid) where x.xid < open_xids.below)",
            "'{}'",
        ),
    },
    "free_permits": {
        "keeps the permit of a job in order": ("      freed_group := false;\n", "      new.has_permit := null;\n"),
        "keeps no permit that another waits for": ("      and not (new.suspended is true and", "      and not (false and"),
        "keeps the permit of who waits for others": (
            "faultline.waits_for_group(old.id, old.queue, old.group_key)",
            "true",
        ),
        "forgets the mark": "    new.has_permit := null;\n",
        "gives the queue's permit back once": ("(old.state = 'running')::integer", "1"),
        "tells the claims": ("if freed > 0 or freed_group then", "if false then"),
        "wakes who waits": (
            "    perform faultline.wake_for_free_permit(old.queue,",
            "    perform faultline.wake_for_free_permit('',",
        ),
    },
    "break_group_deadlocks": {
        "is for those that wait for each other": (
            "      select k.first as id from walks k where k.first = k.last\n",
            "      select k.first as id from walks k\n",
        ),
        "leaves those alone that were woken": ("        and j.next_run_at > faultline.clock()\n", ""),
        "the youngest gives way, and no other": ("and k.last > c.id", "and false"),
        "waits for nobody": ("        for update skip locked\n", "        for update\n"),
        "is recorded in the journal": ("      from freed f\n    )", "      from freed f where false\n    )"),
        "tells the claims": (
            "    perform faultline.insert_group_events(job.queue,",
            "    perform faultline.insert_group_events('',",
        ),
        "wakes who waits": (
            "    perform faultline.wake_for_free_permit(job.queue,",
            "    perform faultline.wake_for_free_permit('',",
        ),
    },
    "complete": {
        "frees permits": "    perform faultline.free_ended(permit_queues, permit_groups, wakes => not complete.claims);\n",
        "wakes nobody for who claims": ("wakes => not complete.claims", "wakes => true"),
        "wakes again afterwards": ("wakes => not complete.claims", "wakes => false"),
    },
    "free_ended": {
        "wakes who waits": (
            "    perform faultline.wake_for_free_permit(one.queue, one.group_keys);\n",
            "    null;\n",
        ),
        "tells of a hundred groups at a time": ("- 1) / 100 as part", "- 1) / 100000 as part"),
    },
    "guards.sql": {
        "free_permits_of_gone: not twice": (
            "when (old.has_permit and coalesce(current_setting('faultline.verb', true), '') <> 'complete')",
            "when (old.has_permit)",
        ),
    },
}
