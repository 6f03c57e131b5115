"""Large claims of a queue take turns, and nobody waits for long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from faultline.core.model import Submission
from faultline.store import verbs
from faultline_proof.probes.probe import expect, probe

if TYPE_CHECKING:
    from faultline_proof.sessions import Sessions


#: Longer than a claim waits for its turn, shorter than a session here waits for any lock.
_SOON_SECONDS = 4.0


@probe("claim", "lock_large_claim")
def large_claims_of_a_queue_take_turns_and_nobody_else_waits(sessions: Sessions) -> None:
    q, second = sessions.open(), sessions.open()
    q.run(verbs.enqueue_many([Submission("t")] * 100))
    turns = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
    q.begin()
    granted = q.claim(20)
    expect("turns for a few", q.value(turns), 0)
    granted += q.claim(21)
    expect("turns for many", q.value(turns), 1)
    q.claim(21, queue="other")
    expect("turns in two queues", q.value(turns), 2)
    waiting = second.start(lambda s: s.claim(25))
    sessions.wait_until_blocked(second, waiting)
    q.commit()
    granted += waiting.result()
    expect("granted", (len(granted), len({lease.job_id for lease in granted})), (66, 66))


@probe("claim", "lock_large_claim")
def a_claim_whose_turn_does_not_come_goes_on_without_it(sessions: Sessions) -> None:
    q, holder = sessions.open(), sessions.open()
    q.run(verbs.enqueue_many([Submission("t")] * 60))
    patience = q.value("show lock_timeout")
    q.begin()
    expect("at once", len(q.claim(10)), 10)
    expect("in turn", (len(q.claim(21)), q.value("show lock_timeout")), (21, patience))
    q.rollback()
    holder.begin()
    holder.claim(25)
    q.begin()
    begun = time.monotonic()
    expect("out of turn", (len(q.claim(25)), q.value("show lock_timeout")), (25, patience))
    expect("soon", time.monotonic() - begun < _SOON_SECONDS, True)


@probe("lock_large_claim")
def a_turn_ignores_what_somebody_left_in_the_session(sessions: Sessions) -> None:
    q = sessions.open()
    for left in ("x", "1", "1 x", "nan nan", "1e999 1"):
        with q.unsaved():
            q.run(verbs.enqueue_many([Submission("t")] * 21))
            q.execute("select set_config('faultline.claim_lock_pause', %s, true)", left)
            expect(f"claimed after {left}", len(q.claim(21)), 21)


@probe("lock_large_claim")
def who_waited_for_a_turn_in_vain_does_not_wait_again_for_a_while(sessions: Sessions) -> None:
    q, hostile = sessions.open(), sessions.open()
    sessions.clock.take()
    hostile.execute("select pg_advisory_lock(faultline.claim_lock('default'))")
    q.run(verbs.enqueue_many([Submission("t")] * 105))
    pauses = []
    for seconds in (0, 0.9, 0.2, 2.1, 4.1):
        sessions.clock.advance(seconds)
        expect("claimed all the same", len(q.claim(21)), 21)
        until, pause = q.value("show faultline.claim_lock_pause").split()
        pauses.append(pause)
        expect("until later", float(until) >= q.value("select extract(epoch from faultline.clock())::float8"), True)
    expect("pauses", pauses, ["1", "1", "2", "4", "8"])
    q.execute("set faultline.claim_lock_pause = '0 32'")
    q.claim(21)
    expect("the longest pause", q.value("show faultline.claim_lock_pause").split()[1], "32")
    hostile.execute("select pg_advisory_unlock_all()")
    sessions.clock.advance(33)
    q.claim(21)
    expect("after a turn", q.value("show faultline.claim_lock_pause"), "")


@probe("claim", "reap")
def claimers_and_reapers_share_the_work(sessions: Sessions) -> None:
    q, first, second = sessions.open(), sessions.open(), sessions.open()
    q.run(verbs.enqueue_many([Submission("t")] * 10))
    first.begin()
    one = first.claim(6)
    two = sessions.at_once(second, lambda s: s.claim(6))
    first.commit()
    expect("jobs of two claimers", (len(one), len(two), len({lease.job_id for lease in one + two})), (6, 4, 10))
    sessions.clock.advance(31)
    first.begin()
    taken = first.reap(max_jobs=6)
    expect("claimed while they are given back", sessions.at_once(q, lambda s: s.claim(6)), [])
    rest = sessions.at_once(second, lambda s: s.reap())
    first.commit()
    found = (len(taken), len(rest), len({job.job_id for job in taken + rest}))
    expect("jobs of two reapers", found, (6, 4, 10))
