"""What is measured: told twice it counts once, summed up it stays the same, and counting holds nobody up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from faultline.core.measures import COUNTS
from faultline.store import verbs
from faultline.store.reads import doctor_queries, overview
from faultline_proof.probes.probe import expect, probe, refused

if TYPE_CHECKING:
    from faultline_proof.sessions import Session, Sessions

_SUMS = ("wait_seconds_sum", "run_seconds_sum")
_HISTOGRAMS = ("waits", "runs")


def _tell(q: Session, worker: str = "w", *, minutes_ago: float = 0, queue: str = "mail", **counts: Any) -> None:
    minute = q.value("select (faultline.clock() - make_interval(secs => %s))::text", minutes_ago * 60)
    nothing = {**dict.fromkeys((*COUNTS, *_SUMS), 0), **{name: [] for name in _HISTOGRAMS}}
    q.run(verbs.tally(worker, [{**nothing, "queue": queue, "minute": minute, **counts}]))


def _told(q: Session, columns: str = "started") -> list[tuple[Any, ...]]:
    return q.execute(f"select queue, worker, {columns} from faultline.tallies order by queue, minute, worker")


@probe("heartbeat")
def a_heartbeat_that_says_too_little_is_refused(sessions: Sessions) -> None:
    q = sessions.open()
    for what, text in (
        ("null, 'h', 1, '1', '{}'", "the id of a worker must have 1 to 100 characters"),
        ("'w/1', 'h', 1, '1', '{}'", "the heartbeat of worker w/1 is refused"),
        ("'w', 'h', 1, '1', null", "the heartbeat of worker w is refused"),
    ):
        with refused(q, "FL005", text, what=what):
            q.execute(f"select faultline.heartbeat({what})")


@probe("tally")
def a_tally_counts_once_however_often_and_late_it_comes(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    numbers: dict[str, Any] = {name: place for place, name in enumerate((*COUNTS, *_SUMS), start=2)}
    numbers |= {"waits": [0, 1], "runs": [2]}
    ones: dict[str, Any] = dict.fromkeys((*COUNTS, *_SUMS), 1)
    _tell(q, **ones, waits=[1], runs=[1])
    for _ in range(2):
        _tell(q, **numbers)
    _tell(q, **numbers | {"started": 0})
    expect("told", _told(q, ", ".join(numbers)), [("mail", "w", *numbers.values())])
    _tell(q, "other", started=7)
    _tell(q, queue="web", started=8)
    expect("side by side", _told(q), [("mail", "other", 7), ("mail", "w", 2), ("web", "w", 8)])


@probe("tally")
def a_tally_wants_a_worker_and_a_minute_of_this_hour(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    for nobody in ("", None):
        with refused(q, "FL005", "id of its worker"):
            _tell(q, nobody, started=1)  # type: ignore[arg-type]
    for minutes_ago in (56, -6):
        _tell(q, minutes_ago=minutes_ago, started=1)
    expect("told", _told(q), [])
    for minutes_ago in (54, -4):
        _tell(q, minutes_ago=minutes_ago, started=1)
    seconds = q.execute("select extract(second from minute)::integer from faultline.tallies")
    expect("the seconds of the minutes", seconds, [(0,), (0,)])


@probe("roll_up")
def rolled_up_tallies_keep_their_sums(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    columns = ", ".join((*COUNTS, *_SUMS))
    numbers: dict[str, Any] = {name: place for place, name in enumerate((*COUNTS, *_SUMS), start=1)}
    for worker in "abc":
        _tell(q, worker, **numbers, waits=[1])
    sessions.clock.advance(59 * 60)
    expect("rolled up too early", q.run(verbs.roll_up()), 0)
    sessions.clock.advance(2 * 60)
    gone = [q.value("select faultline.roll_up(2)") for _ in range(2)]
    expect("rolled up in parts", gone, [2, 1])
    (total,) = q.run(overview.totals())
    thrice = [3 * number for number in numbers.values()]
    expect("totals", [getattr(total, name) for name in COUNTS], thrice[: len(COUNTS)])
    expect("summed over the workers", _told(q, columns), [("mail", "", *thrice)])
    _tell(q, **numbers)
    sessions.clock.advance(25 * 3600)
    expect("rolled up after a day", q.run(verbs.roll_up()), 2)
    _tell(q, **numbers)
    sessions.clock.advance(26 * 3600)
    expect("rolled up after two", q.run(verbs.roll_up()), 1)
    times = [5 * number for number in numbers.values()]
    expect("summed over all time", _told(q, f"{columns}, minute = '-infinity'"), [("mail", "", *times, True)])
    expect("rolled up again", q.run(verbs.roll_up()), 0)


@probe("roll_up")
def tallies_of_the_day_keep_their_minutes(sessions: Sessions) -> None:
    q = sessions.open()
    for minutes_ago in (30, 20):
        _tell(q, minutes_ago=minutes_ago, started=1)
    sessions.clock.advance(24 * 3600)
    expect("rolled up", q.run(verbs.roll_up()), 2)
    expect("rolled up again", q.run(verbs.roll_up()), 0)
    expect("kept", _told(q), [("mail", "", 1)] * 2)


@probe("roll_up", "sample")
def one_measures_and_nobody_waits_for_it(sessions: Sessions) -> None:
    q, second = sessions.open(), sessions.open()
    _tell(q, started=1)
    sessions.clock.advance(61 * 60)
    q.begin()
    expect("rolled up by one", q.run(verbs.roll_up()), 1)
    expect("rolled up by another", sessions.at_once(second, lambda s: s.run(verbs.roll_up())), 0)
    expect("sampled by one", q.run(verbs.sample()), True)
    expect("sampled by another", sessions.at_once(second, lambda s: s.run(verbs.sample())), False)
    q.rollback()
    expect("rolled up then", second.run(verbs.roll_up()), 1)


def _sampled(q: Session) -> list[tuple[Any, ...]]:
    return q.execute(
        "select queue, due, delayed, running, failed, faultline.clock() - oldest_due_at = interval '1 second'"
        " from faultline.samples order by queue, minute"
    )


def _begin_a_minute(sessions: Sessions, q: Session) -> None:
    """What happens within some seconds is then told in one row."""
    sessions.clock.take()
    at = q.value("select extract(second from faultline.clock())::float8")
    sessions.clock.advance(61 - at)


@probe("sample", "count_jobs", "count_queued", "oldest_due", "queues_seen")
def a_sample_tells_jobs_and_queues_apart(sessions: Sessions) -> None:
    q = sessions.open()
    _begin_a_minute(sessions, q)
    for _ in range(5):
        q.enqueue()
    leases = q.claim(3)
    q.fail(leases[0], then="fail")
    q.fail(leases[1], then="cancel")
    q.enqueue(delay_seconds=60.0)
    q.enqueue(queue="later", delay_seconds=60.0)
    # Nobody has waited for it before it was there.
    q.enqueue(queue="empty", run_at=datetime(2020, 1, 1, tzinfo=UTC))
    for queue in ("bad", "busy"):
        q.enqueue(queue=queue)
    q.fail(*q.claim(queue="bad"), then="fail")
    q.claim(queue="busy")
    sessions.clock.advance(1)
    expect("sampled", q.run(verbs.sample()), True)
    found = [
        ("bad", 0, 0, 0, 1, None),
        ("busy", 0, 0, 1, 0, None),
        ("default", 2, 1, 1, 1, True),
        ("empty", 1, 0, 0, 0, True),
        ("later", 0, 1, 0, 0, None),
    ]
    expect("samples", _sampled(q), found)
    waits = {waiting.queue: waiting.oldest_seconds for waiting in q.run(doctor_queries.waiting())}
    expect("waited since it was enqueued", waits["empty"], 1)
    (lease,) = q.claim(queue="empty")
    q.complete(lease)
    sessions.clock.advance(5)
    q.run(verbs.sample())
    expect("the queue that is empty now", _sampled(q)[-2], ("empty", 0, 0, 0, 0, None))


@probe("sample", "count_jobs")
def the_newest_sample_of_a_minute_stands(sessions: Sessions) -> None:
    q = sessions.open()
    _begin_a_minute(sessions, q)
    q.enqueue()
    (lease,) = q.claim()
    q.enqueue(delay_seconds=600.0)
    q.run(verbs.sample())
    q.fail(lease, then="fail")
    q.enqueue()
    q.enqueue(delay_seconds=600.0)
    sessions.clock.advance(5)
    q.run(verbs.sample())
    found = q.execute(
        "select due, delayed, running, failed, oldest_due_at is null, faultline.clock() - sampled_at, extract(second from"
        " minute)::integer from faultline.samples"
    )
    zero = q.value("select interval '0'")
    expect("samples", found, [(1, 2, 0, 1, False, zero, 0)])


@probe("sample", "roll_up", "queues_seen")
def an_empty_queue_is_sampled_as_long_as_anyone_cares(sessions: Sessions) -> None:
    q = sessions.open()
    sessions.clock.take()
    _tell(q, started=1)
    q.enqueue()
    q.run(verbs.sample())
    q.complete(q.claim_one())
    for _ in range(2):
        sessions.clock.advance(60)
        q.run(verbs.sample())
    samples = q.execute("select queue, count(*) from faultline.samples group by queue order by queue")
    expect("samples", samples, [("default", 2), ("mail", 3)])
    sessions.clock.advance(86_400)
    q.run(verbs.sample())
    expect("samples after a day", q.value("select count(*) from faultline.samples"), 5)
    expect("rolled up", q.run(verbs.roll_up()), 1)
    sessions.clock.advance(2 * 3600)
    expect("what went: the samples, and the tally of that day", q.run(verbs.roll_up()), 6)


@probe("sample")
def sampling_is_rare_and_rarer_where_it_is_dear(sessions: Sessions) -> None:
    q = sessions.open()
    expect("sampled", q.run(verbs.sample()), True)
    expect("what it took is known", q.value("select took_seconds between 1e-6 and 5 from faultline.sampling"), True)
    sessions.clock.take()
    sessions.hand.execute("update faultline.sampling set sampled_at = faultline.clock(), took_seconds = 0")
    taken = []
    for _ in range(6):
        sessions.clock.advance(1)
        taken.append(q.run(verbs.sample()))
    expect("sampled by the second", taken, [False] * 4 + [True, False])
    for took, pause in ((0.4, 20), (2, 30)):
        sessions.hand.execute(f"update faultline.sampling set sampled_at = faultline.clock(), took_seconds = {took}")
        sessions.clock.advance(pause - 1)
        expect("sampled too soon after a dear one", q.run(verbs.sample()), False)
        sessions.clock.advance(1)
        expect("sampled then", q.run(verbs.sample()), True)
    sessions.hand.execute("update faultline.sampling set sampled_at = faultline.clock() + interval '1 day'")
    expect("sampled although the last time lies ahead", q.run(verbs.sample()), True)
    sessions.hand.execute("delete from faultline.sampling")
    expect("sampled without its row, which comes back", [q.run(verbs.sample()) for _ in range(2)], [True, False])


def _estimated(q: Session, exact_max: int) -> list[tuple[Any, ...]]:
    q.execute("update faultline.sampling set sampled_at = '-infinity'")
    q.value(f"select faultline.sample({exact_max})")
    return q.execute(
        "select queue, due, delayed, running, failed, estimated, faultline.clock() - oldest_due_at = interval '1 second'"
        " from faultline.samples order by queue"
    )


@probe("sample", "count_jobs", "count_queued", "oldest_due")
def what_is_too_much_to_count_is_estimated_and_said_to_be(sessions: Sessions) -> None:
    """The table is so small that all of its pages are drawn: an estimate is as right as a count, but is not called one."""
    q = sessions.hand
    _begin_a_minute(sessions, q)
    for _ in range(3):
        q.enqueue()
    q.enqueue(delay_seconds=600.0, priority=-1)
    q.enqueue(queue="mail", priority=5)
    expect("one alone is counted as far as was asked for", [row[5] for row in _estimated(q, 3)], [["due", "delayed"], []])
    q.enqueue(queue="mail", delay_seconds=600.0)
    for queue, ending in (("busy", None), ("bad", "fail"), ("bad", "fail"), ("bad", "cancel")):
        q.enqueue(queue=queue)
        (lease,) = q.claim(queue=queue)
        if ending:
            q.fail(lease, then=ending)
    sessions.clock.advance(1)
    bad: tuple[Any, ...] = ("bad", 0, 0, 0, 2, [], None)
    busy: tuple[Any, ...] = ("busy", 0, 0, 1, 0, [], None)
    mail: tuple[Any, ...] = ("mail", 1, 1, 0, 0, [], True)
    expect("all counted", _estimated(q, 4), [bad, busy, ("default", 3, 1, 0, 0, [], True), mail])
    both = ["due", "delayed"]
    expect("one is too crowded", _estimated(q, 3), [bad, busy, ("default", 3, 1, 0, 0, both, True), mail])
    q.enqueue(queue="busy", delay_seconds=600.0)
    found = _estimated(q, 2)
    expect("two share what may be counted", [row[5] for row in found], [[], [], both, []])
    q.enqueue(queue="mail")
    q.enqueue(queue="busy", delay_seconds=600.0)
    found = _estimated(q, 2)
    expect("three share it", [row[5] for row in found], [[], *([both] * 3)])
    expect("and are counted rightly", [row[1:5] for row in found], [(0, 0, 0, 2), (0, 2, 1, 0), (3, 1, 0, 0), (2, 1, 0, 0)])
    for queue in ("busy", "bad"):
        q.enqueue(queue=queue, priority=-9)
        (lease,) = q.claim(queue=queue)
        if queue == "bad":
            q.fail(lease, then="fail")
    found = _estimated(q, 2)
    expect("failed and", [row[3:5] for row in found], [(0, 3), (2, 0), (0, 0), (0, 0)])
    expect("are too many", ["failed" in row[5] for row in found], [True] * 4)
    expect("and running ones not yet", ["running" in row[5] for row in found], [False] * 4)
    found = _estimated(q, 1)
    expect("running ones are too many", ["running" in row[5] for row in found], [True] * 4)
    expect("but known", [row[3:5] for row in found], [(0, 3), (2, 0), (0, 0), (0, 0)])
    for _ in range(4):
        q.enqueue(queue="busy", delay_seconds=600.0)
    q.enqueue(queue="busy", priority=-9)
    q.claim(queue="busy")
    expect("more than were looked at are estimated", _estimated(q, 1)[1][1:5], (0, 6, 3, 0))
