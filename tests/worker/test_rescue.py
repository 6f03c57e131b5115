"""Each guard of what the companion does in the database. Something happens between two of its statements."""

from __future__ import annotations

import contextlib
from math import inf
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline.core.model import JobState
from faultline.store import verbs
from faultline.store.database import Database
from faultline.worker.companion.database import Rescue
from faultline.worker.companion.memory import Shared
from tests.worker.test_companion import held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.driver import Driver


class Interrupted(Database):
    """Does something after a statement of this name was answered."""

    after = ""
    then: Callable[[], object] = staticmethod(lambda: None)

    def run(self, statement: Any) -> Any:
        answer = super().run(statement)
        if statement.name == self.after:
            self.then()
        return answer


class Scene(Rescue):
    now = 100.0

    def __init__(self, dsn: str) -> None:
        self.shared = Shared.create(10)
        super().__init__(dsn, "w", self.shared, lambda: self.now)
        self.database = self._database = Interrupted(dsn)

    def after(self, name: str, then: Callable[[], object]) -> None:
        self.database.after, self.database.then = name, then


@pytest.fixture
def scene(dsn: str) -> Iterator[Scene]:
    with contextlib.closing(Scene(dsn)) as made:
        yield made


def test_what_was_written_meanwhile_is_not_renewed_and_nothing_is_refused(scene: Scene, queue: Driver) -> None:
    written, running = held(queue, scene.shared, 2)
    for hold in (written, running):
        scene.shared.begin(hold, 1.0)
    queue.run(verbs.release([written.lease]))

    scene.renew()

    assert (scene.shared.renewed_at(written), scene.shared.renewed_at(running)) == (-inf, 100.0)
    assert queue.journal(written.lease.job_id) == []


def test_a_lease_is_renewed_when_it_is_due(scene: Scene, queue: Driver) -> None:
    (hold,) = held(queue, scene.shared, 1)
    scene.shared.begin(hold, 1.0)
    renewals = []
    for seconds in (0, 2, 2):
        scene.now += seconds
        scene.renew()
        renewals.append(queue.job(hold.lease.job_id).renewals)

    assert renewals == [1, 1, 2]


def test_a_renewal_that_was_refused_is_none(scene: Scene, queue: Driver) -> None:
    (hold,) = held(queue, scene.shared, 1)
    scene.shared.begin(hold, 1.0)
    scene.after("still_held", lambda: queue.run(verbs.release([hold.lease])))

    scene.renew()

    assert scene.shared.renewed_at(hold) == -inf


def test_a_renewal_that_found_the_row_locked_is_none(scene: Scene, queue: Driver, dsn: str) -> None:
    (hold,) = held(queue, scene.shared, 1)
    scene.shared.begin(hold, 1.0)
    with psycopg.connect(dsn) as other:
        other.execute("select from faultline.open_jobs for update")

        scene.renew()

    assert scene.shared.renewed_at(hold) == -inf


@pytest.mark.parametrize("by", ["list", "claim"])
def test_what_the_worker_begins_meanwhile_is_left_to_it(scene: Scene, queue: Driver, by: str) -> None:
    (hold,) = held(queue, scene.shared, 1)

    def begin() -> None:
        if by == "claim":
            scene.shared.enter([hold], 7)
            scene.shared.claim_answered(0)
        scene.shared.begin(hold, 1.0)

    if by == "claim":
        scene.shared.leave([hold])
        scene.shared.claim_sent(0, 7)
    scene.after("still_held", begin)

    scene.release()

    assert queue.state(hold.lease.job_id) is JobState.RUNNING
    assert scene.shared.raised == 1


@pytest.mark.parametrize(("by", "moment"), [("list", ""), ("claim", "claimed_by")])
def test_what_is_not_held_any_more_is_not_released_and_nothing_is_refused(
    scene: Scene, queue: Driver, by: str, moment: str
) -> None:
    (hold,) = held(queue, scene.shared, 1)
    if by == "claim":
        scene.shared.leave([hold])
        scene.shared.claim_sent(0, 7)
        scene.after(moment, lambda: queue.run(verbs.release([hold.lease])))
    else:
        queue.run(verbs.release([hold.lease]))

    scene.release()

    assert queue.journal(hold.lease.job_id) == []


def test_the_worker_is_not_kept_waiting_by_a_release_that_failed(scene: Scene, queue: Driver) -> None:
    held(queue, scene.shared, 1)
    scene.after("still_held", lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        scene.release()

    assert (scene.shared.raised, scene.shared.done) == (1, 1)


def test_the_worker_is_disturbed_only_where_there_is_something_to_give_back(scene: Scene, queue: Driver) -> None:
    scene.shared.claim_sent(0, 7)
    scene.release()
    nothing = scene.shared.raised
    held(queue, scene.shared, 1)
    raised = []
    for seconds in (0.5, 0.5, 1.5, 1.5):
        scene.now += seconds
        scene.release()
        raised.append(scene.shared.raised)

    assert (nothing, raised) == (0, [0, 1, 1, 1])
