"""Tales about flows, told as they should be and forged in one thing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline_proof.faults import Rule
from faultline_proof.reads.holdings import Transition
from tests.proof.forgeries import breaks

if TYPE_CHECKING:
    from tests.proof.tales import Tale


def _waiting(tale: Tale) -> None:
    """The job `j` waits, and the faults have stopped."""
    tale.claimed()
    tale.by("a/1", 1, "suspend")
    tale.limits |= {"faults_stopped_at": 0.0, "seconds_to_end": lambda _: 3.0}
    tale.row("queued", 1, suspended=True, flow_id="j", due_at=1e9)


# A waiting job goes on


@breaks(Rule.WOKEN)
def a_job_sleeps_on_after_its_signal(tale: Tale) -> None:
    _waiting(tale)
    tale.waits("signal")
    tale.kept_signal("s", sent_at=1.0 if tale.forged else 4.0)


@breaks(Rule.WOKEN)
def a_job_sleeps_on_after_its_time(tale: Tale) -> None:
    _waiting(tale)
    tale.waits("sleep", until=1.0 if tale.forged else 7.0)


@breaks(Rule.WOKEN)
def a_job_sleeps_on_after_its_last_child(tale: Tale) -> None:
    _waiting(tale)
    tale.waits("children", total=1)
    tale.child("c")
    tale.limits |= {"whole": False, "seconds_to_end": lambda row: 3.0 if row.job_id == "j" else 60.0}
    tale.row("succeeded", 1, "w", "c", flow_id="j", finished_at=1.0 if tale.forged else 5.0)


@breaks(Rule.WOKEN)
def a_signal_that_is_meant_for_another_call_wakes_nobody(tale: Tale) -> None:
    _waiting(tale)
    tale.waits("signal", number="2")
    tale.kept_signal("s", sent_at=1.0, for_call="2" if tale.forged else "1")


@breaks(Rule.WOKEN)
def an_old_signal_is_no_answer_to_a_new_question(tale: Tale) -> None:
    _waiting(tale)
    tale.waits("signal", fresh=not tale.forged, begun_at=2.0)
    tale.kept_signal("s", sent_at=1.0)


@breaks(Rule.WOKEN)
def a_failed_child_is_enough_for_who_asked_for_it(tale: Tale) -> None:
    _waiting(tale)
    tale.limits["seconds_to_end"] = lambda row: 3.0 if row.job_id == "j" else 60.0
    tale.waits("children", total=2, fast=tale.forged)
    tale.child("c")
    tale.child("d", 1)
    tale.row("cancelled", 0, None, "c", flow_id="j", finished_at=1.0, attempt=0)
    tale.final.journal.append(Transition("c", "cancelled", "queued", 0, "cancelled", 0))
    tale.row("queued", 0, None, "d", flow_id="j")


# Signals


@breaks(Rule.SIGNAL_ONCE)
def an_acknowledged_signal_is_gone(tale: Tale) -> None:
    tale.claimed()
    tale.row("running", 1, "a/1")
    tale.call("signal", key="s", outcome="ok" if tale.forged else "unknown")


@breaks(Rule.SIGNAL_ONCE)
def one_key_is_kept_twice(tale: Tale) -> None:
    tale.claimed()
    tale.row("running", 1, "a/1")
    tale.call("signal", key="s")
    tale.kept_signal("s")
    if tale.forged:
        tale.kept_signal("s")


@breaks(Rule.SIGNAL_ONCE)
def one_call_receives_two_signals(tale: Tale) -> None:
    tale.claimed()
    tale.row("running", 1, "a/1")
    tale.waits("signal", awaited=False, outcome="done")
    tale.kept_signal("s", "1")
    tale.kept_signal("t", "1" if tale.forged else None)


@breaks(Rule.SIGNAL_ONCE)
def a_call_has_received_what_nobody_sent(tale: Tale) -> None:
    tale.claimed()
    tale.row("running", 1, "a/1")
    tale.waits("signal", awaited=False, outcome="done")
    if not tale.forged:
        tale.kept_signal("s", "1")


@breaks(Rule.SIGNAL_ONCE)
def a_received_signal_has_lost_its_call(tale: Tale) -> None:
    tale.claimed()
    tale.row("running", 1, "a/1")
    tale.waits("signal", awaited=False, outcome="timeout" if tale.forged else "done")
    tale.kept_signal("s", "1")


@breaks(Rule.SIGNAL_ORDER)
def signals_are_kept_in_the_opposite_order(tale: Tale) -> None:
    tale.claimed()
    tale.row("running", 1, "a/1")
    tale.call("signal", key="s")
    tale.call("signal", key="t")
    for key in ("t", "s") if tale.forged else ("s", "t"):
        tale.kept_signal(key)


@breaks(Rule.SIGNAL_ORDER)
def signals_are_received_in_the_opposite_order(tale: Tale) -> None:
    tale.claimed()
    tale.row("running", 1, "a/1")
    tale.waits("signal", "9", awaited=False, outcome="done")
    tale.waits("signal", "10", awaited=False, outcome="done")
    tale.kept_signal("s", "10" if tale.forged else "9")
    tale.kept_signal("t", "9" if tale.forged else "10")


# Children


def _parent(tale: Tale) -> None:
    tale.claimed()
    tale.row("running", 1, "a/1", flow_id="j")


@breaks(Rule.SPAWN_ONCE)
def a_parent_goes_on_with_too_few_children(tale: Tale) -> None:
    _parent(tale)
    tale.waits("children", awaited=False, outcome="done", total=2 if tale.forged else 1)
    tale.child("c")
    tale.row("queued", 0, None, "c", flow_id="j")


@breaks(Rule.SPAWN_ONCE)
def a_child_exists_twice(tale: Tale) -> None:
    _parent(tale)
    tale.waits("children", total=2)
    tale.child("c")
    tale.child("d", 0 if tale.forged else 1)
    for job_id in ("c", "d"):
        tale.row("queued", 0, None, job_id, flow_id="j")


@breaks(Rule.SPAWN_ONCE)
def a_child_is_lost(tale: Tale) -> None:
    _parent(tale)
    tale.waits("children", total=1)
    tale.child("c")
    if not tale.forged:
        tale.row("queued", 0, None, "c", flow_id="j")


@breaks(Rule.SPAWN_ONCE)
def a_child_has_no_parent(tale: Tale) -> None:
    _parent(tale)
    tale.waits("children", total=1)
    tale.row("queued", 0, None, "c", flow_id="j")
    if not tale.forged:
        tale.child("c")


@breaks(Rule.TREE_ENDS)
def a_child_outlives_its_cancelled_parent(tale: Tale) -> None:
    tale.limits |= {"faults_stopped_at": 0.0, "seconds_to_end": lambda row: 3.0 if row.due_at is None else 60.0}
    tale.call("enqueue")
    tale.row("cancelled", 0, flow_id="j", finished_at=0.0, attempt=0)
    tale.entry("cancelled", "queued", "cancelled", 0)
    tale.now = 5.0
    tale.waits("children", total=1, awaited=False)
    tale.child("c")
    tale.row("queued", 0, None, "c", flow_id="j", created_at=3.0 if tale.forged else 2.5, due_at=None)
    if not tale.forged:
        tale.limits["faults_stopped_at"] = 2.5
