"""Forks: a new job that goes on with the history of another, from a call on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import Faultline, IllegalTransition, Job, JobFailed, JobNotFound, JobRejected, JobState
from tests.flow.running import calls, ended, job_of, journal, journals, signals, waits
from tests.worker.working import results

if TYPE_CHECKING:
    from faultline import JobHandle, Task


class Shop:
    """A program of two steps, with its children between them."""

    def __init__(self, app: Faultline) -> None:
        self.ran: list[str] = []
        self.is_broken = False

        @app.step
        async def pick(order: int) -> int:
            self.ran.append(f"pick {order}")
            return order * 10

        @app.step
        async def pack(order: int, total: int) -> str:
            self.ran.append(f"pack {order}")
            if self.is_broken:
                raise ValueError("no boxes")
            return f"{order}: {total}"

        @app.task
        async def weigh(item: int) -> int:
            self.ran.append(f"weigh {item}")
            return item

        @app.task(max_attempts=1)
        async def order(job: Job, number: int) -> str:
            first = await job.do(pick, number)
            weights = await job.map(weigh, [1, 2, first])
            return await job.do(pack, number, sum(weights))

        self.order: Task[Any, str] = order


def test_a_fork_runs_what_comes_from_the_call_on_and_remembers_what_was_before(app: Faultline) -> None:
    shop = Shop(app)
    handle = shop.order.enqueue(4)
    assert ended(app, handle) == "4: 43"
    shop.ran.clear()

    fork = handle.fork(before=3, by="me", reason="a look")

    assert fork.id != handle.id
    assert ended(app, fork) == "4: 43"
    assert shop.ran == ["pack 4"]
    assert list(calls(app, fork)) == ["1", "2", "3"]
    assert job_of(app, fork)["fencing_token"] > job_of(app, handle)["fencing_token"]
    assert job_of(app, fork)["flow_id"] == fork.id
    [into], [origin] = journal(app, handle, "forked"), journal(app, fork, "forked")
    assert (into["into"], into["before"], into["by"], into["reason"]) == (str(fork.id), "3", "me", "a look")
    assert origin["from"] == str(handle.id)


def test_a_fork_before_the_children_calls_them_anew(app: Faultline) -> None:
    shop = Shop(app)
    handle = shop.order.enqueue(4)
    ended(app, handle)
    shop.ran.clear()

    assert ended(app, app.fork(handle.id, before="2")) == "4: 43"

    assert sorted(shop.ran) == ["pack 4", "weigh 1", "weigh 2", "weigh 40"]


def test_a_fork_of_a_failed_job_goes_on_where_it_failed(app: Faultline) -> None:
    shop = Shop(app)
    shop.is_broken = True
    handle = shop.order.enqueue(4)
    assert isinstance(ended(app, handle), JobFailed)
    shop.ran.clear()
    shop.is_broken = False

    assert ended(app, handle.fork()) == "4: 43"

    assert shop.ran == ["pack 4"]
    assert app.job(handle.id).state is JobState.FAILED


def test_a_fork_needs_nothing_of_the_other_flow(app: Faultline) -> None:
    shop = Shop(app)
    handle = shop.order.enqueue(4)
    ended(app, handle)
    fork = handle.fork(before=3)
    shop.ran.clear()

    with psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute("select faultline.prune('flows', interval '0')")
    with pytest.raises(JobNotFound):
        app.job(handle.id)

    assert ended(app, fork) == "4: 43"
    assert shop.ran == ["pack 4"]


def test_children_that_failed_the_job_are_called_anew_by_its_fork(app: Faultline) -> None:
    is_broken = True

    @app.task(max_attempts=1)
    async def part(item: int) -> int:
        if is_broken and item == 2:
            raise ValueError("broken")
        return item

    @app.task(max_attempts=1)
    async def whole(job: Job) -> list[int]:
        return await job.map(part, [1, 2])

    handle = whole.enqueue()
    assert isinstance(ended(app, handle), JobFailed)
    is_broken = False

    assert ended(app, handle.fork()) == [1, 2]


def test_a_waiting_job_can_be_forked_and_both_go_on(app: Faultline) -> None:
    @app.task
    async def article(job: Job, topic: str) -> str:
        answer = await job.receive("approval", str)
        again = await job.receive("approval", str)
        return f"{topic}: {answer} {again}"

    handle = article.enqueue("ducks")
    ended_first: list[Any] = []

    async def forks(_: Any) -> None:
        fork = await handle.afork(args={"topic": "geese"})
        await waits(app)(fork)
        await fork.asignal("approval", "also")
        await fork.asignal("approval", "gladly")
        ended_first.append(await fork.aresult(30))

    async def sends(_: Any) -> None:
        await handle.asignal("approval", "no")

    result = ended(app, handle, waits(app), forks, signals(app, "approval", "yes"), sends)

    assert result == "ducks: yes no"
    assert ended_first == ["geese: also gladly"]


def test_a_fork_of_a_job_of_a_graph_has_what_it_came_after(app: Faultline) -> None:
    @app.task
    async def extract(source: str) -> str:
        return source.upper()

    @app.task
    async def load(job: Job) -> dict[str, str]:
        return {name: one.result for name, one in (await job.upstream()).items()}

    with app.flow("nightly") as flow:
        flow.add(load, after=[flow.add(extract, "crm", name="crm")])
    handle = flow.enqueue()
    results(app, [handle])
    fork = handle.jobs["load"].fork()

    with psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute("select faultline.prune('flows', interval '0')")

    assert ended(app, fork) == {"crm": "CRM"}
    with pytest.raises(JobNotFound):
        app.job(handle.id)


def test_a_graph_itself_cannot_be_forked(app: Faultline) -> None:
    shop = Shop(app)
    with app.flow("nightly") as flow:
        flow.add(shop.order, 1)
    handle = flow.enqueue()

    with pytest.raises(IllegalTransition, match="fork one of these jobs"):
        handle.fork()


def test_a_saga_that_was_undone_is_forked_before_it_began(app: Faultline) -> None:
    done: list[str] = []
    is_broken = True

    @app.step
    async def book() -> str:
        done.append("book")
        return "seat"

    @app.step
    async def unbook(_: str | None) -> None:
        done.append("unbook")

    @app.step
    async def charge() -> None:
        if is_broken:
            raise ValueError("no money")

    @app.task
    async def trip(job: Job) -> str:
        async with job.saga() as saga:
            seat = await saga.do(book, undo=unbook)
            await saga.do(charge)
        return seat

    handle = trip.enqueue()
    assert isinstance(ended(app, handle), JobFailed)
    assert done == ["book", "unbook"]
    is_broken = False

    with pytest.raises(IllegalTransition, match="was undone; fork it before call 1"):
        handle.fork()
    assert ended(app, handle.fork(before=1)) == "seat"
    assert done == ["book", "unbook", "book"]


def test_what_lost_a_race_runs_again_in_a_fork_from_before_its_end(app: Faultline) -> None:
    @app.task
    async def first(job: Job) -> str:
        _, found = await job.race(job.receive("slow", str), job.receive("quick", str))
        return found

    handle = first.enqueue()
    assert ended(app, handle, waits(app), signals(app, "quick", "quick")) == "quick"
    fork = handle.fork(before=2)

    assert ended(app, fork, waits(app), signals(app, "slow", "slow")) == "slow"


def test_named_steps_from_before_the_call_are_kept(app: Faultline) -> None:
    ran: list[str] = []

    def note(word: str) -> str:
        ran.append(word)
        return word

    @app.step
    async def between() -> None: ...

    @app.task
    async def program(job: Job) -> list[str]:
        one = await job.step("one", note, "one")
        await job.do(between)
        two = await job.step("two", note, "two")
        return [one, two]

    handle = program.enqueue()
    ended(app, handle)
    ran.clear()

    assert ended(app, handle.fork(before=1)) == ["one", "two"]
    assert ran == ["two"]


def test_an_unknown_job_or_call_or_arguments_that_are_none_begin_nothing(app: Faultline) -> None:
    shop = Shop(app)
    handle = shop.order.enqueue(4)
    ended(app, handle)

    with pytest.raises(JobNotFound, match=f"job {handle.id} has no call 7"):
        handle.fork(before=7)
    with pytest.raises(JobNotFound):
        handle.fork(before="1' or true")
    with pytest.raises(JobNotFound):
        app.fork("00000000-0000-7000-8000-000000000000")
    with (
        psycopg.connect(app.dsn, autocommit=True) as connection,
        pytest.raises(psycopg.DatabaseError) as refused,
    ):
        connection.execute("select faultline.fork(%s, args => '[1]')", (handle.id,))
    assert refused.value.sqlstate == "FL005"
    assert journal(app, handle, "forked") == []


def test_arguments_that_were_not_kept_must_be_given(app: Faultline) -> None:
    @app.task(keep_args=False)
    async def secret(word: str) -> str:
        return word

    handle = secret.enqueue("sesame")
    ended(app, handle)

    with pytest.raises(JobRejected, match="its own were not kept"):
        handle.fork()
    assert ended(app, handle.fork(args={"word": "open"})) == "open"


@pytest.mark.parametrize("key", ["key-7", "ducks"])
def test_a_fork_keeps_calls_that_were_given_what_names_the_job(app: Faultline, key: str) -> None:
    """Its id and its key are those of the fork now. Other arguments are compared as ever."""
    ran: list[str] = []

    @app.step
    def publish(topic: str, key: str) -> Any:
        ran.append(f"publish {topic}")
        return key

    @app.step
    def end(topic: str) -> str:
        ran.append("end")
        return topic

    @app.task
    def note(owner: str) -> str:
        ran.append("note")
        return owner

    @app.task
    async def article(job: Job, topic: str) -> list[Any]:
        async def part(owner: Any) -> list[Any]:
            return [await job.do(publish, "part", str(owner)), await job.step("own", lambda: job.id.hex)]

        await job.do(end, topic)
        found = [
            await job.do(publish, topic, job.idempotency_key),
            await job.do(publish, topic, f"article {job.id}"),
            await job.call(note, str(job.id)),
            *await job.gather(job.branch(part, job.id), job.branch(part, job.idempotency_key)),
        ]
        await job.do(end, topic)
        return found

    handle = article.options(idempotency_key=key).enqueue("ducks")
    first = ended(app, handle)
    assert isinstance(first, list), first
    ran.clear()

    for fork in (handle.fork(before=7), handle.fork(before=7).fork()):
        assert ended(app, fork) == first
    assert ran == ["end"] * 3

    if key == "ducks":
        return  # nobody knows which of the two a text was
    other = handle.fork(before=7, args={"topic": "geese"})
    ended(app, other, journals(app, "program_changed"), _cancels)
    assert "had other arguments" in str(journal(app, other, "program_changed")[0])
    assert ran == ["end"] * 3


async def _cancels(handle: JobHandle[Any]) -> None:
    await handle.acancel()


def test_a_fork_may_be_the_first_call_of_a_program(app: Faultline, dsn: str) -> None:
    handle = Shop(app).order.enqueue(4)
    ended(app, handle)

    with Faultline(dsn) as other:
        assert other.fork(handle.id).id != handle.id

    async def forks() -> None:
        async with Faultline(dsn) as third:
            assert (await third.afork(handle.id)).id != handle.id

    asyncio.run(forks())


@pytest.mark.parametrize("args", [[1], "abc", 7, {1: 2}])
def test_the_arguments_of_a_fork_are_a_dict_by_name(app: Faultline, args: Any) -> None:
    handle = Shop(app).order.enqueue(4)

    with pytest.raises(JobRejected, match=r"the arguments of a fork must be a dict by name, as .*, not "):
        handle.fork(args=args)
