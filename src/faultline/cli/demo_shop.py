"""A small demo shop for `faultline up` and compose.yaml. Some of its jobs fail now and then.

The tasks need no tables of their own, so any worker login can run them. Run as a program, it enqueues orders.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal

from faultline import Cancel, Faultline, Job, Retry

app = Faultline()
_chance = random.SystemRandom()


class BankAway(Exception):
    """The bank does not answer. Retrying may help."""


@app.task(queue="orders", max_attempts=6, lease=5, backoff=lambda attempt: 0.5 * 2**attempt)
async def charge(job: Job, order: int, cents: int) -> dict[str, int | str]:
    receipt = await job.step("bank", _bank, order)
    async with job.transaction() as tx:
        tx.complete({"order": order, "cents": cents, "receipt": receipt})
    await mail.aenqueue(order, "Thank you for your order")
    return {}


@app.task(queue="mail", max_attempts=3, lease=5, backoff=lambda _: 1.0)
async def mail(order: int, subject: str) -> str:
    await asyncio.sleep(_chance.uniform(0.005, 0.05))
    if _chance.random() < 0.01:  # noqa: PLR2004 - a mailbox in a hundred is gone
        raise LookupError(f"no such mailbox for order {order}")
    return f"{subject} ({order})"


@app.task(queue="reports", max_attempts=2, lease=5, priority=100)
async def report(job: Job, pages: int) -> int | Retry | Cancel:
    for page in range(1, pages + 1):
        await asyncio.sleep(_chance.uniform(0.1, 0.4))
        await job.progress({"page": page, "of": pages})
    dice = _chance.random()
    if dice < 0.05:  # noqa: PLR2004
        return Cancel("nobody reads this one")
    return Retry(after=5) if dice < 0.15 else pages  # noqa: PLR2004


async def _bank(order: int) -> str:
    await asyncio.sleep(_chance.uniform(0.1, 0.8))
    if _chance.random() < 0.08:  # noqa: PLR2004
        raise BankAway("the bank did not answer")
    return f"receipt-{order}"


async def take_orders(per_second: float = 15.0) -> None:
    """Enqueue until stopped: orders all the time, a report now and then."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    order = 0
    async with app:
        while not stop.is_set():
            order += 1
            await charge.aenqueue(order, _chance.randint(100, 20_000))
            if order % 40 == 0:
                await report.aenqueue(_chance.randint(3, 20))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _chance.expovariate(per_second))


if __name__ == "__main__":
    asyncio.run(take_orders())
