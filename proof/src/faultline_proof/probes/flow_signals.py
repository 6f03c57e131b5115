"""Signals: kept until they are asked for, each received once, and no answer to another question."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.store import verbs
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from faultline_proof.sessions import Sessions


@probe("signal", "receive", "kept_signal")
def a_signal_is_kept_received_once_and_in_the_order_sent(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    for n in (1, 2):
        expect("sent", q.run(verbs.signal(lease.job_id, "go", {"n": n})), wanted=True)
    for number, wanted in (("1", {"n": 1}), ("2", {"n": 2}), ("1", {"n": 1})):
        found = q.run(verbs.receive(lease, number, name="go"))
        expect(f"call {number}", (found.status, found.payload), ("received", wanted))
    expect("the third", q.run(verbs.receive(lease, "3", name="go")).status, "none")


@probe("signal", "signals")
def the_same_key_counts_once(sessions: Sessions) -> None:
    q, other = sessions.open(), sessions.open()
    job_id = q.enqueue()
    q.begin()
    expect("the first", q.run(verbs.signal(job_id, "go", 1, key="k")), wanted=True)
    second = other.start(lambda session: session.run(verbs.signal(job_id, "go", 2, key="k")))
    sessions.wait_until_blocked(other, second)
    q.commit()
    expect("the second", second.result(), wanted=False)
    expect("kept", q.execute("select payload from faultline.signals"), [(1,)])
    with refused(q, "FL004", "no job"):
        q.run(verbs.signal("00000000-0000-0000-0000-000000000000", "go"))
