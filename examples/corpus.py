"""Summarise 1,000 documents, each in a job of its own, and merge what came of them.

Watch: `map` enqueues one child for each document, in one call, and the parent waits for them without a slot: the worker
below has two slots, and both are the children's. Three documents cannot be read. With `on_failure="keep"` their results
are `None`, and stay `None` in every later run of the program, whatever becomes of these jobs.

    export FAULTLINE_DSN=embedded:
    faultline migrate
    python examples/corpus.py
"""

import asyncio
from dataclasses import dataclass

from faultline import Cancel, Faultline, Job

app = Faultline()

DOCUMENTS = 1_000
UNREADABLE = {"document 13", "document 500", "document 999"}


@dataclass(frozen=True)
class Summary:
    """What is known of one document, or of many."""

    documents: int
    words: int


runs = {"summarise": 0, "merge": 0, "corpus": 0}


@app.task(queue="documents", max_attempts=3)
async def summarise(document: str) -> Summary | Cancel:
    runs["summarise"] += 1
    if document in UNREADABLE:
        return Cancel("this document cannot be read")
    return Summary(documents=1, words=len(document.split()))


@app.step
async def merge(parts: list[Summary]) -> Summary:
    runs["merge"] += 1
    return Summary(documents=sum(part.documents for part in parts), words=sum(part.words for part in parts))


@app.task(queue="corpora")
async def corpus(job: Job, documents: list[str]) -> str:
    runs["corpus"] += 1
    parts = await job.map(summarise, documents, on_failure="keep")
    whole = await job.do(merge, [part for part in parts if part is not None])
    return f"{whole.documents} of {len(documents)} documents, {whole.words} words"


async def main() -> None:
    documents = [f"document {number}" for number in range(DOCUMENTS)]
    async with app, app.worker({"documents": 100, "corpora": 1}):
        handle = await corpus.aenqueue(documents)
        print(await handle.aresult(timeout=60))
    print(f"children: {runs['summarise']}, merged: {runs['merge']}, the program ran {runs['corpus']} times")


if __name__ == "__main__":
    asyncio.run(main())
