"""Make operations of a history from what goes over the wires of a process.

A `Line` is one connection. It needs the text of a statement, its parameters and the rows of its answer, nothing else: a
simulated wire can use it, and so can a `tape`, on which real processes write them down.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from faultline_proof import budget_rules, limit_changes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from faultline_proof.history import History, Operation

Rows = list[tuple[Any, ...]]
#: What a statement asks for: of each job its id, token, owner, key and detail, as far as they are known.
Question = list[tuple[Any, ...]]

_BATCHES = frozenset({"renew", "record_start", "complete", "fail", "release", "suspend", "continue_as_new"})
#: Those whose answer is a row with a status, or says why the lease is lost, and those that answer with a refusal, if any.
_ANSWERED = frozenset({"spawn", "receive", "first_over", "collect_outcomes", "watch", "take_budget"})
_SINGLES = frozenset({"step", "progress", "fence", "record", "stream"}) | _ANSWERED
_FOR_A_JOB = frozenset({"cancel", "retry", "signal"})
_WITH_LEASES = frozenset({"claim", "claimed_by", "reap"})
_CHANGES = limit_changes.VERBS | budget_rules.CHANGES
_ENQUEUES = frozenset({"enqueue_many", "enqueue_one"})
VERBS = _BATCHES | _SINGLES | _FOR_A_JOB | _WITH_LEASES | _CHANGES | _ENQUEUES
WORDS = frozenset({"begin", "commit", "rollback"})


class Line:
    """One connection. What is sent inside a transaction is answered for by its commit."""

    def __init__(self, history: History, process: str, clock: Callable[[], float]) -> None:
        self.history = history
        self.process = process
        self.clock = clock
        #: Answers that wait for the commit. None: no transaction is open.
        self.open: list[tuple[Operation, Callable[[float], None]]] | None = None
        self.broken = False

    def sent(self, sql: str | bytes, params: Sequence[Any] | None = None) -> Call:
        """To be called before it is sent. What is none of the protocol's verbs is followed for its transaction only."""
        verb = verb_of(sql)
        return self.asked(verb, question(verb, params or ()))

    def asked(self, verb: str, jobs: Question) -> Call:
        at = self.clock()
        name = "enqueue" if verb in _ENQUEUES else verb
        return Call(self, verb, [self.history.invoke(self.process, name, at, *job) for job in jobs])

    def close(self, end: Callable[[Operation, Callable[[float], None]], None]) -> None:
        """The transaction is over: end what waited for it."""
        waiting, self.open, self.broken = self.open or [], None, False
        for operation, accept in waiting:
            end(operation, accept)


class Call:
    """One statement on its way. Ends once: answered, refused, or lost."""

    def __init__(self, line: Line, verb: str, operations: list[Operation]) -> None:
        self._line = line
        self._operations = operations
        self.verb = verb

    def answered(self, rows: Rows | None = None) -> None:
        self.told(answer(self.verb, rows or []))

    def told(self, jobs: Rows) -> None:
        """It was answered, and this is what `answer` has made of its rows."""
        line, at = self._line, self._line.clock()
        if self.verb == "begin":
            line.open = []
        elif self.verb == "rollback" or (self.verb == "commit" and line.broken):
            line.close(lambda operation, _: operation.failed(at, "rolled back"))
        elif self.verb == "commit":
            line.close(lambda _, accept: accept(at))
        for operation, accept, reason in self._read(jobs):
            if reason is not None:
                operation.failed(at, reason)
            elif line.open is None:
                accept(at)
            else:
                line.open.append((operation, accept))

    def refused(self, why: str) -> None:
        """The server has answered with an error: nothing was done."""
        at = self._line.clock()
        self._line.broken = self._line.open is not None
        if self.verb in ("commit", "rollback"):
            self._line.close(lambda operation, _: operation.failed(at, why))
        for operation in self._operations:
            operation.failed(at, why)

    def lost(self) -> None:
        """No answer came. What a transaction has done before its commit was sent is surely undone."""
        line, at = self._line, self._line.clock()
        if line.open is None:
            for operation in self._operations:
                operation.unknown(at)
        elif self.verb == "commit":
            line.close(lambda operation, _: operation.unknown(at))
        else:
            for operation in self._operations:
                operation.failed(at, "rolled back")
            line.close(lambda operation, _: operation.failed(at, "rolled back"))

    def _read(self, jobs: Rows) -> Iterator[tuple[Operation, Callable[[float], None], str | None]]:
        """Each operation with what to do when it is accepted, or why it was not."""
        operations = self._operations
        if not operations:
            return  # a question: its rows are of no shape that is known here
        if self.verb in _ENQUEUES:
            # Ids that the client made just now are not told back.
            for operation, (job_id,) in zip(operations, jobs or [(op.job_id,) for op in operations], strict=True):
                yield operation, partial(operation.ok, job_id=job_id), None
        elif self.verb in _WITH_LEASES:
            (operation,) = operations
            leases = [(job[0], job[1], job[2] if self.verb == "reap" else operation.owner) for job in jobs]
            yield operation, partial(operation.ok_with, leases=leases), None
        elif self.verb in _ANSWERED:
            (operation,) = operations
            yield operation, operation.ok, jobs[0][0] if jobs else None
        else:
            refusals: dict[Any, str] = {(job_id, token, owner): reason for job_id, token, owner, reason in jobs}
            for operation in operations:
                lease = (operation.job_id, operation.token, operation.owner)
                yield operation, operation.ok, refusals.get(lease) if refusals else None


def question(verb: str, params: Sequence[Any]) -> Question:
    """What the parameters of a statement ask for."""
    if verb in _ENQUEUES:
        jobs = [{"id": params[0]}] if verb == "enqueue_one" else orjson.loads(params[0])
        return [
            (str(UUID(job["id"])) if job.get("id") else None, None, None, job.get("idempotency_key"), _unique_key(job))
            for job in jobs
        ]
    if verb in _BATCHES:
        # A lease that stands twice in a batch is written once.
        leases = dict.fromkeys(zip(*map(_elements, params[:3]), strict=True))
        return [(str(UUID(job_id)), int(token), owner) for job_id, token, owner in leases]
    if verb in _SINGLES:
        return [(str(params[0]), params[1], params[2], None, _about(verb, params))]
    if verb == "signal":
        return [(None if params[0] is None else str(params[0]), None, None, params[3])]
    if verb in _FOR_A_JOB:
        return [(str(params[0]),)]
    if verb in _CHANGES:
        return [(None, None, None, None, _change(verb, params))]
    if verb in _WITH_LEASES:
        owner = {"claim": 1, "claimed_by": 0}.get(verb)
        return [(None, None, None if owner is None else params[owner])]
    return []


def answer(verb: str, rows: Rows) -> Rows:
    """What the rows of an answer tell of jobs: ids, leases that were granted or taken back, and why which was refused."""
    if verb == "enqueue_many":
        return [(str(row[0]),) for row in rows] if rows and len(rows[0]) > 1 else []
    if verb in _WITH_LEASES:
        return [(str(row[0]), *row[1 : 3 if verb == "reap" else 2]) for row in rows]
    if verb in _ANSWERED:
        if verb == "take_budget" and rows and rows[0][0] in ("wait", "never"):
            return [(rows[0][0],)]  # nothing was taken
        # The last column but one says why the lease is lost.
        return [(row[-2],) for row in rows[:1] if len(row) > 1 and row[-2] is not None]
    # The fence, which raises, and what is for a job answer with one word or none.
    return [(str(row[0]), *row[1:4]) for row in rows if len(row) > 1] if verb in VERBS else []


def _unique_key(job: dict[str, Any]) -> str | None:
    """With its queue. Of those that a waiting job stands in for, and none that has run."""
    unique = job.get("unique") or {}
    if unique.get("key") is None or unique.get("while", "queued") != "queued" or unique.get("period") is not None:
        return None
    return f"{unique['key']} in {job.get('queue') or 'default'}"


def _about(verb: str, params: Sequence[Any]) -> str | None:
    """The name of a step; of a take, the budget, the cost and its number."""
    if verb == "take_budget":
        return orjson.dumps(list(params[3:6])).decode()
    return params[3] if verb == "step" else None


def _change(verb: str, params: Sequence[Any]) -> str:
    """The queue, the key that is set, and what is said of it; or a budget."""
    if verb in budget_rules.CHANGES:
        return orjson.dumps([params[0], None if params[1] is None else orjson.loads(params[1])]).decode()
    said, place = {"declare_queue": (1, None), "set_limit": (2, 1), "reset_limit": (None, 1)}[verb]
    value = None if said is None else params[said]
    document = orjson.loads(value) if isinstance(value, str | bytes) else value
    return orjson.dumps([params[0], None if place is None or len(params) <= place else params[place], document]).decode()


@lru_cache(maxsize=1024)
def verb_of(statement: str | bytes) -> str:
    """The verb of the protocol that a statement calls, or the word that begins or ends a transaction."""
    sql = statement if isinstance(statement, str) else statement.decode()
    if "owner = %s" in sql and "state = 'running'" in sql:
        return "claimed_by"
    called = re.search(r"\bfaultline\.(\w+)\(", sql)
    word = sql.strip().partition(" ")[0].lower()
    name = called[1] if called else word
    return name if name in VERBS or name in WORDS else ""


def _elements(array: str) -> list[str]:
    """The elements of a PostgreSQL array in its text form, as the store writes it: all of them quoted, or none."""
    inner = array[1:-1]
    if not inner.startswith('"'):
        return inner.split(",") if inner else []
    return [text.replace('\\"', '"').replace("\\\\", "\\") for text in inner[1:-1].split('","')]
