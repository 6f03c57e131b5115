"""Who may touch the jobs of some queues touches the schedules of these queues, and no other, at whatever moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.core.model import Submission
from faultline.core.schedules import Policy, Rule
from faultline.store.verbs import schedules as verbs
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.store.statement import Statement
    from faultline_proof.sessions import Sessions

VERBS: dict[str, Callable[..., Statement[Any]]] = {
    "pause": verbs.pause_schedule,
    "resume": verbs.resume_schedule,
    "run": verbs.run_schedule,
    "backfill": lambda name, **signed: verbs.backfill(name, [], **signed),
}


def spec(queue: str | None, every: float = 60.0) -> str:
    return verbs.spec_text(Rule(every=every), Submission("t", queue=queue), Policy())


@probe("pause_schedule", "resume_schedule", "run_schedule", "backfill", "remove_schedule")
def a_schedule_of_another_queue_is_not_found(sessions: Sessions) -> None:
    q = sessions.open()
    for name, queue in (("s", "mail"), ("plain", None)):
        q.run(verbs.set_schedule(name, spec(queue)))
        for verb in VERBS.values():
            with refused(q, "FL004", "no schedule named"):
                q.run(verb(name, only_queues=["other"]))
            q.run(verb(name, only_queues=["other", queue or "default"]))
        expect("removed by a stranger", q.run(verbs.remove_schedule(name, only_queues=["other"])), wanted=False)
        removed = q.run(verbs.remove_schedule(name, only_queues=[queue or "default"]))
        expect("removed", removed, wanted=True)


@probe("set_schedule")
def a_schedule_is_neither_taken_from_another_queue_nor_moved_there(sessions: Sessions) -> None:
    q = sessions.open()
    q.run(verbs.set_schedule("s", spec("mail")))
    for queue in ("mail", "other"):
        with refused(q, "FL002", "another queue"):
            q.run(verbs.set_schedule("s", spec(queue, 30.0), only_queues=["other"]))
    with refused(q, "FL002", "another queue"):
        q.run(verbs.set_schedule("s", spec("other", 30.0), only_queues=["mail"]))
    expect("as it was", q.value("select spec ->> 'every' from faultline.schedules"), "60.0")
    expect("its own", q.run(verbs.set_schedule("s", spec("mail", 30.0), only_queues=["mail"])), wanted=True)
    expect("a new one", q.run(verbs.set_schedule("t", spec("mail"), only_queues=["mail"])), wanted=True)


@probe("pause_schedule", "run_schedule", "set_schedule")
def a_schedule_that_is_moved_to_another_queue_meanwhile_is_not_found(sessions: Sessions) -> None:
    q, mover = sessions.open(), sessions.open()
    for verb in VERBS.values():
        q.run(verbs.set_schedule("s", spec("mail")))
        mover.begin()
        mover.run(verbs.set_schedule("s", spec("other")))
        answer = q.start(lambda own, verb=verb: own.run(verb("s", only_queues=["mail"])))  # type: ignore[misc]
        sessions.wait_until_blocked(q, answer)
        mover.commit()
        with refused(q, "FL004", "no schedule named"):
            answer.result()
        q.run(verbs.remove_schedule("s"))
    expect("jobs", q.value("select count(*) from faultline.jobs"), 0)
