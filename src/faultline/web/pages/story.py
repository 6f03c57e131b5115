"""The history of a job in sentences, for readers who do not know fencing tokens. It says only what is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from faultline.core.journal import EpochEnd
from faultline.core.model import JobState
from faultline.explain.attempt_timeline import letters, worker_of
from faultline.explain.epochs import unrecorded
from faultline.explain.formatting import ago, clock, count, duration, headline, times, words
from faultline.explain.tree import limit, waits_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from faultline.core.model import JobRecord, JournalEntry
    from faultline.explain.epochs import Epoch, RefusedWrite
    from faultline.store.reads.flows import Call

#: Earlier epochs are only counted.
_SHOWN_MAX = 6
_ERROR_LENGTH = 120


class _Sentence(NamedTuple):
    at: datetime
    order: int
    text: Markup


def sentences(
    job: JobRecord,
    epochs: Sequence[Epoch],
    now: datetime,
    waits: Sequence[Call] = (),
    changed: JournalEntry | None = None,
) -> list[Markup]:
    """In the order in which it happened. Every value is escaped.

    `waits`: what a suspended job waits for; `changed`: that the code of a queued one does not fit its history.
    """
    unknown = None if changed is not None else unrecorded(job, epochs)
    if job.suspended and not epochs:
        ran = Markup("It ran under token <b>{}</b>, and released its lease to wait.").format(job.fencing_token)
        return [*([ran] if job.fencing_token else []), *_waits(job, waits, now)]
    if not epochs and unknown is None:
        return [_untouched(job, now)]
    story = _Story(letters(epochs), now)
    shown = epochs[-_SHOWN_MAX:]
    for number, epoch in enumerate(shown):
        others = [write.at for other in shown if other is not epoch for write in other.refusals]
        story.add(epoch, first=number == 0 and len(shown) == len(epochs), others=others)
    sentences = [sentence.text for sentence in sorted(story.sentences, key=lambda sentence: sentence[:2])]
    if len(shown) < len(epochs):
        sentences.insert(0, Markup("The first {} epochs are not shown here.").format(count(len(epochs) - len(shown))))
    sentences += [Markup.escape(unknown)] if unknown else []
    if changed is not None:
        why = str(changed.detail.get("error") or "the program has changed")
        sentences.append(
            Markup('<em class="refusal">It does not go on</em> since {}: {}.').format(clock(changed.at, now), why)
        )
    return [*sentences, *(_waits(job, waits, now) if job.suspended else _after(job, epochs, now))]


def _waits(job: JobRecord, waits: Sequence[Call], now: datetime) -> list[Markup]:
    found = []
    for call in waits:
        over = limit(call.until)
        until = "" if over is None else f", until {clock(over, now)} at the latest"
        what = waits_for(call.kind, call.name)
        found.append(Markup("Since {} it waits {}{}.").format(clock(call.begun_at, now), what, until))
    if job.next_run_at is not None and job.next_run_at <= now:
        return [*found, Markup("The time of its wait is over: it goes on when a worker claims it.")]
    return [*found, Markup("Meanwhile it holds no lease and no worker.")]


def _untouched(job: JobRecord, now: datetime) -> Markup:
    if job.state is JobState.CANCELLED:
        return Markup("It was cancelled before any worker claimed it.")
    if job.next_run_at is not None and job.next_run_at > now:
        return Markup("No worker has claimed this job yet. It is due {}.").format(ago(job.next_run_at, now))
    waits = duration(now - (job.next_run_at or job.created_at))
    return Markup("No worker has claimed this job yet. It has been waiting in <b>{}</b> for {}.").format(job.queue, waits)


def _after(job: JobRecord, epochs: Sequence[Epoch], now: datetime) -> list[Markup]:
    """The final state, if the last epoch does not say it."""
    refused = sum(len(epoch.refusals) for epoch in epochs)
    if job.state is JobState.SUCCEEDED and (refused or len(epochs) > 1):
        return [Markup("The ledger has one row for the job, under token <b>{}</b>.").format(job.fencing_token)]
    if job.state is JobState.QUEUED and job.next_run_at is not None:
        if job.next_run_at > now:
            return [Markup("The next attempt is due {}.").format(ago(job.next_run_at, now))]
        return [Markup("It waits for a worker.")]
    if job.state is JobState.FAILED:
        if job.attempt < job.max_attempts:
            return [Markup("The job has failed at once: an error of this kind is not tried again.")]
        return [Markup("No attempt is left: the job has failed.")]
    return []


class _Story:
    def __init__(self, names: Mapping[str, str], now: datetime) -> None:
        self._names = names
        self._now = now
        self.sentences: list[_Sentence] = []

    def add(self, epoch: Epoch, *, first: bool, others: Sequence[datetime]) -> None:
        """`others`: when others were refused. If one lies between claim and end, these become two sentences."""
        who = self._who(epoch)
        if epoch.claimed_at is not None:
            start = Markup("{} {} at {} under token <b>{}</b>").format(
                who, "claimed the job" if first else "took over", self._clock(epoch.claimed_at), epoch.token
            )
            end = self._end(epoch)
            parted = epoch.ended_at is not None and any(epoch.claimed_at < at < epoch.ended_at for at in others)
            if parted and epoch.ended_at is not None:
                self._say(epoch.claimed_at, 0, start + ".")
                self._say(epoch.ended_at, 2, Markup("{} {}").format(who, end) + ".")
            else:
                self._say(epoch.claimed_at, 0, start + " and " + end + ".")
        if epoch.refusals:
            self._say(epoch.refusals[0].at, 1, self._refused(epoch, who))

    def _say(self, at: datetime, order: int, text: Markup) -> None:
        self.sentences.append(_Sentence(at, order, text))

    def _who(self, epoch: Epoch) -> Markup:
        return Markup("<b>Worker {}</b>").format(self._names.get(worker_of(epoch.owner), "unknown"))

    def _clock(self, at: datetime | None) -> str:
        return clock(at, self._now)

    def _end(self, epoch: Epoch) -> Markup:
        ended = self._clock(epoch.ended_at)
        match epoch.end:
            case EpochEnd.RUNNING:
                return self._holds(epoch)
            case EpochEnd.SUCCEEDED:
                return Markup("finished it at {}").format(ended)
            case EpochEnd.FAILED:
                text = headline(epoch.reason)[:_ERROR_LENGTH] or "no error was recorded"
                return Markup("failed at {}: <q>{}</q>").format(ended, text)
            case EpochEnd.REAPED if epoch.reason == "lease_expired":
                return Markup("held it until {}, when its lease expired").format(self._clock(epoch.lease_expires_at))
            case EpochEnd.REAPED:
                return Markup("held it until {}, when that worker was found dead").format(ended)
            case EpochEnd.CANCELLED:
                return Markup("held it until it was cancelled at {}").format(ended)
            case end:
                return Markup("held it until {}, when the job was {}").format(ended, words(end))

    def _holds(self, epoch: Epoch) -> Markup:
        renewed = f", renewed {times(epoch.renewals)}" if epoch.renewals else ""
        if epoch.lease_expires_at is not None and epoch.lease_expires_at < self._now:
            over = self._clock(epoch.lease_expires_at)
            return Markup("still runs it, but its lease expired at {}: another worker may take over now").format(over)
        left = duration((epoch.lease_expires_at or self._now) - self._now)
        return Markup("holds it now; the lease is valid for {}{}").format(left, renewed)

    def _refused(self, epoch: Epoch, who: Markup) -> Markup:
        write = epoch.refusals[0]
        more = len(epoch.refusals) - 1
        again = Markup(", and again {} after that").format(times(more)) if more else Markup()
        return Markup('At {} {} came back and tried to {} it. <em class="refusal">The database refused</em>{}: {}.').format(
            self._clock(write.at), who, words(write.verb), again, _why(epoch, write)
        )


def _why(epoch: Epoch, write: RefusedWrite) -> str:
    match write.reason:
        case "token_mismatch" if write.current_token is not None:
            return f"token {epoch.token} was no longer the current one, {write.current_token} was"
        case "token_mismatch":
            return f"token {epoch.token} was no longer the current one"
        case "lease_lost":
            return "its lease had been reaped"
        case "lease_expired":
            return "its lease had expired"
        case "not_running":
            return "the job had ended"
        case reason:
            return words(reason)
