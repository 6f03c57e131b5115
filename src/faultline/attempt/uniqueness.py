"""What makes a job the same as another, and what becomes of the second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from faultline.attempt.templates import Template
from faultline.core.bounds import KEY_LENGTH_MAX, UNIQUE_SECONDS_MAX, UNIQUE_SECONDS_MIN
from faultline.core.checks import check_seconds, check_text, seconds
from faultline.core.errors import JobRejected, declaring

if TYPE_CHECKING:
    import inspect
    from collections.abc import Mapping

    from faultline.core.checks import Duration
    from faultline.core.model import Json

_WHILE = ("queued", "open", None)
_THEN = ("keep", "replace")


@dataclass(frozen=True, slots=True)
class Unique:
    """When an enqueue creates no second job: `@app.task(unique=Unique(key="doc:{doc_id}"))`.

    A job that is answered with one that is queued already is followed by a run that starts after its transaction has
    committed. So that run sees what the transaction has written.

    :param while_: `queued`: a job that waits for a worker stands in for a new one. `open`: a running one does, too, and
        changes that it has not seen may be missed. None: only `period` counts.
    :param key: What is the same, of this task in its queue: a text over the arguments, such as `doc:{doc_id}`. Default: all
        its arguments.
    :param period: A job that was enqueued at most so long ago stands in for a new one, unless it failed or was cancelled.
    :param then: `keep` leaves the queued job as it is. `replace` gives it arguments, group and time of the new one.
    :param debounce: The job runs so long after the last enqueue.
    :param at_most: But not later than so long after the first. Default: ten times `debounce`.
    """

    while_: Literal["queued", "open"] | None = "queued"
    key: str | None = None
    period: Duration | None = None
    then: Literal["keep", "replace"] = "keep"
    debounce: Duration | None = None
    at_most: Duration | None = None

    def __post_init__(self) -> None:
        with declaring():
            self._check()

    def _check(self) -> None:
        if self.while_ not in _WHILE:
            key = f"; a key is named: Unique(key={self.while_!r})" if isinstance(self.while_, str) else ""  # type: ignore[redundant-expr]
            raise JobRejected(f"while_ of Unique must be 'queued', 'open' or None, not {self.while_!r:.60}{key}")
        if self.then not in _THEN:
            raise JobRejected(f"then of Unique must be 'keep' or 'replace', not {self.then!r}")
        check_text("key of Unique", self.key, KEY_LENGTH_MAX)
        for name in ("period", "debounce", "at_most"):
            check_seconds(f"{name} of Unique", getattr(self, name), UNIQUE_SECONDS_MIN, UNIQUE_SECONDS_MAX)
        debounce, at_most = seconds(self.debounce), seconds(self.at_most)
        if self.while_ is None and self.period is None:
            raise JobRejected("Unique has neither while_ nor period, so no job would ever count as the same")
        if self.while_ is None and debounce is not None:
            raise JobRejected("Unique has a debounce without while_: there would be no queued job to move")
        if at_most is not None and debounce is None:
            raise JobRejected("Unique has at_most without a debounce; give both, such as debounce=5, at_most=60")
        if at_most is not None and debounce is not None and at_most < debounce:
            raise JobRejected(f"at_most of Unique, {at_most:g} s, is shorter than its debounce, {debounce:g} s")

    def stated(self) -> dict[str, Json]:
        """As the database reads it, without the key."""
        stated: dict[str, Json] = {"while": self.while_}
        given = {name: seconds(getattr(self, name)) for name in ("period", "debounce", "at_most")}
        stated |= {name: value for name, value in given.items() if value is not None}
        return stated if self.then == "keep" else stated | {"then": self.then}


class Keys:
    """The unique keys of one task's jobs."""

    __slots__ = ("_stated", "_template")

    def __init__(self, unique: Unique, signature: inspect.Signature, task: str) -> None:
        self._stated = unique.stated()
        self._template = None if unique.key is None else Template(unique.key, signature, f"the unique key of task {task}")

    def of(self, args: Mapping[str, Any]) -> dict[str, Json]:
        """What the submission of a job with these arguments says."""
        if self._template is None:
            return self._stated
        key = self._template.fill(args)
        check_text(f"unique key {self._template.text!r}", key, KEY_LENGTH_MAX)
        return self._stated | {"key": key}

    @property
    def names(self) -> list[str]:
        """The arguments that the key names."""
        return [] if self._template is None else self._template.names

    def subscribed(self) -> dict[str, Json]:
        """What a subscription of the task says: the database fills the key."""
        return self._stated if self._template is None else self._stated | {"key": self._template.stored()}


def unique_of(given: Unique | str | None) -> Unique | None:
    """`unique=` of a task: `queued` and `open` are short for `Unique(…)`."""
    if given is None or isinstance(given, Unique):
        return given
    if not isinstance(given, str) or given not in _WHILE:  # type: ignore[redundant-expr]  # callers without a type checker
        raise JobRejected(f"unique must be 'queued', 'open' or Unique(...), not {given!r:.60}")
    return Unique(given)  # type: ignore[arg-type]  # looked at above
