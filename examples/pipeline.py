"""Summarise a book with a model that costs money per call, fails and hangs; and pay for every call once.

Watch: two things keep the bill small, and both are needed.

- `job.step` remembers an answer. The next attempt goes on where the last one broke off, and asks for nothing twice.
- The key that goes along with each call. When an answer is lost on its way there is nothing to remember: the call must be
  made again, and only the other side can know that it was made and paid before. No queue can promise more than that.

    export FAULTLINE_DSN=embedded:
    faultline migrate
    python examples/pipeline.py
"""

import asyncio

from faultline import Faultline, Job

app = Faultline()

CHAPTERS = ["Call me Ishmael.", "I stuffed a shirt or two.", "Entering that gable-ended inn.", "Upon waking next morning."]


class Overloaded(Exception):
    """The API's way to say: not now."""


class Model:
    """Stands in for a model's API. Some of its calls go wrong, by their number: 3 is turned away, 5 is never answered."""

    def __init__(self, *, overloaded_on: int = 3, silent_on: int = 5) -> None:
        self.calls = 0
        self.paid: dict[str, str] = {}  # answers by key: a key that comes again is answered, not charged again
        self._overloaded_on = overloaded_on
        self._silent_on = silent_on

    async def ask(self, prompt: str, *, key: str) -> str:
        self.calls += 1
        call = self.calls
        await asyncio.sleep(0.01)  # the network
        if call == self._overloaded_on:
            print(f"  call {call}: overloaded, not paid")
            raise Overloaded("try again later")
        print(f"  call {call}: {'known, not paid again' if key in self.paid else 'paid'}")
        answer = self.paid.setdefault(key, f"<{prompt.rsplit(maxsplit=1)[-1]}>")
        if call == self._silent_on:
            print(f"  call {call}: the answer is lost")
            await asyncio.Event().wait()
        return answer


model = Model()


@app.task(queue="pipeline", max_attempts=10, timeout=0.5, backoff=lambda attempt: 0.05 * 2**attempt)
async def summarise(job: Job, chapters: list[str]) -> str:
    onlooker = await app.ajob(job.id)  # as a dashboard would: progress outlives the attempt that reported it
    print(f"attempt {job.attempt}; progress so far: {onlooker.progress or 'none'}")
    summaries: list[str] = []
    for number, chapter in enumerate(chapters, start=1):
        name = f"chapter {number}"
        summaries.append(await job.step(name, model.ask, chapter, key=f"{job.idempotency_key}/{name}"))
        await job.progress(f"{number} of {len(chapters)} chapters")
    whole = " ".join(summaries)
    return await job.step("whole", model.ask, f"In one word: {whole}", key=f"{job.idempotency_key}/whole")


async def main() -> None:
    async with app, app.worker():
        handle = await summarise.aenqueue(CHAPTERS)
        summary = await handle.aresult(timeout=60)
        job = await handle.ajob()

    print(f"summary: {summary}")
    print(f"attempts: {job.attempt}, calls: {model.calls}, paid: {len(model.paid)}")


if __name__ == "__main__":
    asyncio.run(main())
