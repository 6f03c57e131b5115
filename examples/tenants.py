"""Mail for many tenants through one provider: what the provider allows, and a fair share for each tenant.

Watch: one tenant has 500 mails waiting when another enqueues a single one, which does not wait for them. Never do more run
at once than the provider allows, and the postings of an account come in their order although the first one fails at first.
The limits hold over all workers. While it runs, a person may change them, and what they set wins over the code:

    app.limits.set("mail", concurrency=2, by="ann", reason="the provider is slow")

    export FAULTLINE_DSN=embedded:
    faultline migrate
    python examples/tenants.py
"""

import asyncio

from faultline import Faultline, Job, Limit

app = Faultline()
AT_ONCE, MAILS = 10, 500

# Tasks whose names begin with "mail." go here without saying so.
mail = app.queue(
    "mail",
    concurrency=AT_ONCE,
    each_group=Limit(concurrency=5),
    groups={"tenant-large": Limit(weight=3)},
    match=("mail.*",),
)
# The next posting of an account begins when the one before has ended for good.
postings = app.queue("postings", each_group=Limit(ordered=True))

running: list[str] = []
at_once: list[int] = []
sent: list[str] = []
posted: list[str] = []


@app.task(name="mail.send", group="tenant-{tenant}")
async def send(tenant: str, number: int) -> str:
    running.append(tenant)
    at_once.append(len(running))
    await asyncio.sleep(0.005)  # the provider
    running.remove(tenant)
    sent.append(tenant)
    return f"mail {number} of {tenant}"


@app.task(queue=postings, group="account-{account}", backoff=lambda _: 0.1)
async def post(job: Job, account: int, text: str) -> None:
    if text == "first" and job.attempt == 1:
        raise RuntimeError(f"the books of account {account} are closed for a moment")
    posted.append(text)


async def main() -> None:
    async with app, app.worker({mail: 20, postings: 10}):
        large = await app.aenqueue_many(send.bind("large", n) for n in range(MAILS))
        small = await send.aenqueue("small", 1)
        await small.aresult(timeout=60)
        print("the small tenant's mail was sent before all of the large one's:", len(sent) < MAILS)
        for handle in await app.aenqueue_many(post.bind(7, text) for text in ("first", "second", "third")):
            await handle.aresult(timeout=60)
        print("postings:", ", ".join(posted))
        await asyncio.gather(*(handle.aresult(timeout=60) for handle in large))
        print("never more than 10 at once:", max(at_once) <= AT_ONCE)


if __name__ == "__main__":
    asyncio.run(main())
