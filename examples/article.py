"""Write an article with a model that is often overloaded, wait for an editor, and publish once.

Watch: the job waits for the editor in the database. It holds no slot, no connection and no lease meanwhile, so the worker
below is stopped while the editor thinks, and another one goes on where it left off. The draft was written and paid for
once, although the model turned the first two requests away and the program ran twice.

    export FAULTLINE_DSN=embedded:
    faultline migrate
    python examples/article.py
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from faultline import Faultline, Job, JobHandle, Retries

app = Faultline()


class Overloaded(Exception):
    """The model's way to say: not now."""


@dataclass(frozen=True)
class Approval:
    """What the editor says."""

    ok: bool
    by: str = "nobody"


class Model:
    """Stands in for a model's API: it turns the first two requests away."""

    def __init__(self, *, overloaded: int = 2) -> None:
        self.requests = 0
        self.paid = 0
        self._overloaded = overloaded

    async def write(self, topic: str) -> str:
        self.requests += 1
        if self.requests <= self._overloaded:
            print(f"  request {self.requests}: overloaded")
            raise Overloaded("try again later")
        self.paid += 1
        print(f"  request {self.requests}: paid")
        return f"All about {topic}."


model = Model()
published: dict[str, str] = {}  # by key: the same key is published once


@app.step(retries=Retries(5, on=Overloaded, first=0.05), timeout=60)
async def draft(topic: str) -> str:
    return await model.write(topic)


@app.step(retries=3)
async def publish(text: str, key: str) -> str:
    published.setdefault(key, text)
    return f"published: {text}"


@app.task(queue="articles")
async def article(job: Job, topic: str) -> str:
    print(f"the program runs, under token {job.fencing_token}")
    text = await job.do(draft, topic)  # tried again up to five times; remembered
    answer = await job.receive("approval", Approval, timeout=timedelta(days=3), default=Approval(ok=False))
    if not answer.ok:
        return f"rejected by {answer.by}"
    return await job.do(publish, text, job.idempotency_key)


async def main() -> None:
    async with app:
        handle = await article.aenqueue("lighthouses")
        async with app.worker():
            await until_it_waits(handle)
        print("the worker has stopped; the job waits:", (await handle.ajob()).state)

        # The editor's mail program sends it twice. The key makes it one signal.
        for _ in range(2):
            new = await handle.asignal("approval", {"ok": True, "by": "ada"}, key="mail-17")
            print("signal sent, new:", new)

        async with app.worker():
            print(await handle.aresult(timeout=30))
    print(f"requests: {model.requests}, paid: {model.paid}, published: {len(published)}")


async def until_it_waits(handle: JobHandle[str]) -> None:
    while not (await handle.ajob()).suspended:  # noqa: ASYNC110 - it waits in the database
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(main())
