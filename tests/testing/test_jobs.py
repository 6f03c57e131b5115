"""What was enqueued can be asked for and asserted; a claim that does not hold is answered with what is there."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from faultline import ConfigError, Faultline, JobState
from faultline.testing import assert_enqueued, drain, enqueued

ORDER = UUID(int=7)


@pytest.fixture
def shop(app: Faultline) -> Faultline:
    @app.task(queue="mail")
    async def remind(order: UUID, words: list[str] | None = None) -> None: ...

    @app.task
    async def charge(order: UUID) -> None: ...

    remind.enqueue(ORDER, words=["please", "pay"])
    remind.options(priority=-5, delay=60, idempotency_key="k").enqueue(UUID(int=8))
    return app


def test_jobs_are_found_by_task_arguments_and_options(shop: Faultline) -> None:
    def found(task: str | None = None, **words: Any) -> int:
        return len(enqueued(shop, task, **words))

    assert found() == found("remind") == found(queue="mail") == 2
    assert found("charge") == found(queue="default") == 0
    # Arguments are compared as they are stored; those that are not named may be anything.
    assert found(args={"order": ORDER}) == found(args={"words": ("please", "pay")}) == 1
    assert found(args={"order": ORDER, "words": []}) == found(args={"nothing": None}) == 0
    assert found(priority=-5) == found(idempotency_key="k") == 1
    assert found(state=JobState.SUCCEEDED) == 0


def test_jobs_that_have_ended_are_found_when_asked_for(shop: Faultline) -> None:
    drain(shop)

    assert len(assert_enqueued(shop, "remind", count=1)) == 1
    assert [job.state for job in enqueued(shop, state=None)] == [JobState.SUCCEEDED, JobState.QUEUED]


def test_what_is_asserted_is_given_back(shop: Faultline) -> None:
    (job,) = assert_enqueued(shop, shop.tasks["remind"], args={"order": ORDER})

    assert (job.queue, job.args["words"]) == ("mail", ["please", "pay"])
    assert_enqueued(shop, "remind", count=2)
    assert_enqueued(shop, "charge", count=0)


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ({"task": "charge"}, r"expected at least one x charge\(\) queued, found 0\. There are:"),
        ({"task": "remind", "count": 1}, r"expected 1 x remind\(\) queued, found 2"),
        ({"task": "remind", "args": {"order": 9}, "queue": "mail"}, r"remind\(args={'order': 9}, queue='mail'\)"),
        ({"task": "remind", "state": None, "count": 0}, "in any state, found 2"),
    ],
)
def test_a_claim_that_does_not_hold_is_answered_with_what_is_there(
    shop: Faultline, claim: dict[str, Any], said: str
) -> None:
    with pytest.raises(AssertionError, match=said) as error:
        assert_enqueued(shop, **claim)

    assert str(error.value).splitlines()[1:] == [
        f"  remind(order='{ORDER}', words=['please', 'pay']) queued in queue mail, priority 0",
        f"  remind(order='{UUID(int=8)}', idempotency_key='k') queued in queue mail, priority -5",
    ]


def test_an_empty_database_is_told_as_such_and_a_full_one_in_part(app: Faultline) -> None:
    @app.task
    async def note(n: int) -> None: ...

    with pytest.raises(AssertionError, match=r"There are no jobs\."):
        assert_enqueued(app, note)
    app.enqueue_many(note.bind(n) for n in range(25))
    with pytest.raises(AssertionError, match=r"found 25\. There are:\n  note\(n=5\)(.|\n)*note\(n=24\).*\n  and 5 older"):
        assert_enqueued(app, note, count=1)


def test_a_task_that_is_not_registered_is_no_task(shop: Faultline, dsn: str) -> None:
    with Faultline(dsn) as other:

        @other.task
        async def stranger() -> None: ...

    for task in ("remnid", stranger):
        with pytest.raises(ConfigError, match="is registered in this application; registered: charge, remind"):
            assert_enqueued(shop, task, count=0)
