"""Scenes in which permits are granted and given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline_proof.explorer.limits import programs as does
from faultline_proof.explorer.limits import steps
from faultline_proof.explorer.limits.judge import keeps
from faultline_proof.explorer.scenarios import Scenario

if TYPE_CHECKING:
    from faultline_proof.explorer.programs import Program, Scene, Script

#: One of a group may run, one does, and three wait.
_ONE = does.stage(declared=does.each(1))
_KEPT = keeps(group=1)


def _scene(name: str, story: str, set_up: Script = _ONE, judge: object = _KEPT, **programs: Script) -> Scenario:
    named = {who.replace("_", " "): program for who, program in programs.items()}
    return Scenario(name, story, set_up, named, judge=judge)  # type: ignore[arg-type]


_GRANTED = [
    _scene(
        "limit-enqueue-complete-claim",
        "a submission in a long transaction, the end of the only holder, and a claim",
        submitter=does.within(does.submit),
        holder=does.within(does.complete),
        B=does.claims(),
    ),
    _scene(
        "limit-two-claims",
        "two workers want one permit",
        A=does.within(does.claim),
        B=does.within(does.claim),
        holder=does.once(does.complete),
    ),
    _scene(
        "limit-claim-undone",
        "a claim that is rolled back, and one that is not",
        A=does.undone(does.claim),
        holder=does.once(does.complete),
        B=does.claims(2),
    ),
    _scene(
        "limit-queue-two-claims",
        "two workers want the last permit of a queue without groups",
        does.stage(declared=does.whole(2), group=None),
        keeps(queue=2),
        A=does.within(does.claim),
        B=does.within(does.claim),
        holder=does.once(does.complete),
    ),
    _scene(
        "limit-claim-completes-itself",
        "claim, complete and claim in one transaction",
        A=does.claims_and_completes,
        holder=does.once(does.complete),
        B=does.claims(),
    ),
    _scene(
        "limit-complete-claims-itself",
        "the holder completes and claims in one transaction",
        holder=does.completes_and_claims,
        submitter=does.within(does.submit),
        B=does.claims(),
    ),
    _scene(
        "limit-two-groups",
        "two groups of one queue, a permit for each, and two for the queue",
        does.stage(declared={**does.whole(2), **does.each(1)}),
        keeps(queue=2, group=1),
        submitter=does.within(does.submit_elsewhere),
        A=does.within(does.claim),
        B=does.claims(2),
    ),
]

_GIVEN_BACK = [
    _scene(
        "limit-release-enqueue-claim",
        "the holder gives its job back while another one is submitted",
        holder=does.within(does.release),
        submitter=does.within(does.submit),
        B=does.claims(),
    ),
    _scene(
        "limit-retry-claim",
        "the holder fails, and its job is to be tried again at once",
        holder=does.within(does.fail),
        B=does.claims(2),
        submitter=does.within(does.submit),
    ),
    _scene(
        "limit-one-of-two-releases",
        "one of two holders gives its job back",
        does.stage(declared=does.each(2), running=2),
        keeps(group=2),
        holder=does.within(does.release_first),
        B=does.claims(2),
        submitter=does.within(does.submit),
    ),
    _scene(
        "limit-cancel-running",
        "an operator cancels what its holder completes",
        operator=does.within(does.cancel_running),
        holder=does.busy_again(steps.complete),
        B=does.claims(2),
    ),
    _scene(
        "limit-cancel-waiting-undone",
        "an operator cancels one that waits and changes his mind; nobody may forget it meanwhile",
        does.stage(declared=does.each(3)),
        keeps(group=3),
        operator=does.undone(does.cancel_waiting),
        A=does.claims(),
        B=does.claims(),
    ),
    _scene(
        "limit-reap-complete",
        "the holder's lease is taken back while it completes",
        reaper=does.reaps_late,
        holder=does.busy_again(steps.complete),
        B=does.claims(2),
    ),
    _scene(
        "limit-reap-undone",
        "a reap that is rolled back has freed nothing",
        reaper=does.reaps_late,
        A=does.undone(does.claim),
        B=does.claims(2),
    ),
]

_COUNTED = [
    _scene(
        "limit-maintain-complete-claim",
        "upkeep hears what was freed while others claim",
        upkeep=does.within(does.maintain_limits),
        holder=does.within(does.complete),
        B=does.claims(2),
    ),
    _scene(
        "limit-maintain-undone",
        "upkeep dies with what it has heard",
        upkeep=does.undone(does.maintain_limits),
        holder=does.within(does.complete),
        submitter=does.within(does.submit_elsewhere),
        B=does.claims(),
    ),
    _scene(
        "limit-maintain-empty-group",
        "upkeep forgets a group without jobs while one is submitted to it",
        does.stage(declared=does.each(1), waiting=1),
        keeps(group=1),
        holder=does.once(does.complete),
        upkeep=does.within(does.maintain_limits, does.maintain_limits),
        submitter=does.within(does.submit),
        B=does.claims(),
    ),
    _scene(
        "limit-recount-claim",
        "permits are counted anew while they are granted and freed",
        upkeep=does.within(does.recount),
        holder=does.within(does.complete),
        B=does.within(does.claim),
    ),
]

_CHANGED = [
    _scene(
        "limit-raised",
        "the limit is raised while others claim and complete",
        judge=keeps(group=2),
        operator=does.within(does.limit_to("*", concurrency=2)),
        A=does.within(does.claim),
        holder=does.once(does.complete),
    ),
    _scene(
        "limit-lowered",
        "the limit is lowered while others claim and complete",
        set_up=does.stage(declared=does.each(3), running=2),
        judge=keeps(group=3, then=(None, 1)),
        operator=does.within(does.limit_to("*", concurrency=1)),
        A=does.within(does.claim),
        holder=does.once(does.complete),
    ),
    _scene(
        "limit-set-for-the-first-time",
        "a queue without limits is given one while jobs run and are claimed",
        set_up=does.stage(declared={"each_group": {"weight": 1}}, running=2),
        judge=keeps(then=(1, None)),
        operator=does.within(does.limit_to("", concurrency=1)),
        A=does.within(does.claim),
        holder=does.once(does.complete),
    ),
    _scene(
        "limit-reset",
        "what a person has set is taken back while others claim",
        set_up=does.stage(declared=does.each(1)),
        judge=keeps(group=3, then=(None, 1)),
        operator=does.within(does.limit_to("g", concurrency=3), does.reset("g")),
        A=does.within(does.claim),
        holder=does.once(does.complete),
    ),
    _scene(
        "limit-two-declare",
        "two workers of different builds declare the queue while a third claims",
        judge=keeps(group=2),
        A=does.within(does.declare(does.each(2))),
        B=does.within(does.declare(does.each(1))),
        C=does.claims(2),
    ),
]


_RECOVERED = [
    Scenario(
        "limit-recover",
        "an operator recovers while permits are granted and given back",
        _ONE,
        {"operator": does.within(does.recover), "A": does.within(does.claim), "holder": does.once(does.complete_or_give_up)},
        with_recover=True,
        judge=_KEPT,
    )
]


def _unused(scene: Scene) -> Program:
    """Nothing was ever heard of it."""
    yield steps.declare(scene.queue, does.each(1))


_HEARD = [
    Scenario(
        f"limit-hear-{what}",
        f"a submission {told} while claims look for the first time whether there is anything to hear",
        _unused,
        {"submitter": program, "A": does.claims(), "B": does.claims()},
        stops={"A": ("apply_group_events",)},
        judge=_KEPT,
    )
    for what, told, program in (
        ("enqueue", "is committed", does.once(does.submit)),
        ("late-enqueue", "is on its way", does.within(does.submit, does.submit_elsewhere)),
    )
]

SCENES = [*_GRANTED, *_GIVEN_BACK, *_COUNTED, *_CHANGED, *_RECOVERED, *_HEARD]
