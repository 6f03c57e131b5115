"""What Celery's beat does, without a beat process: schedules in the code of the workers.

Watch: two workers run, and each tick makes one job, whichever of them decides. The second schedule is made at run time, for
one user, and removed again. A run by hand and the past are schedules' business, too: the last week's reports are backfilled.

    export FAULTLINE_DSN=embedded:
    faultline migrate
    python examples/beat.py
"""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

from faultline import Faultline

app = Faultline()
runs: Counter[str] = Counter()


@app.schedule(every=1, args=("eu",), name="sync-eu")
@app.task(queue="beat")
async def sync(region: str) -> None:
    runs[f"sync {region}"] += 1


@app.schedule("0 9 * * *", tz="Europe/Berlin", tick_arg="day", name="report")
@app.task(queue="beat")
async def report(day: datetime) -> None:
    runs[f"report of {day:%A}"] += 1


@app.task(queue="beat")
async def digest(user: int) -> None:
    runs[f"digest for {user}"] += 1


async def until(name: str, times: int) -> None:
    while sum(number for run, number in runs.items() if run.startswith(name)) < times:  # noqa: ASYNC110 - simple
        await asyncio.sleep(0.05)


async def main() -> None:
    async with app, app.worker({"beat": 10}), app.worker({"beat": 10}):
        await until("sync eu", 3)
        print("schedules:", ", ".join(line.name for line in await app.schedules.alist()))
        await app.schedules.aset("digest-42", digest.bind(42), every=1, by="ada", reason="asked for it")
        await until("digest for 42", 2)
        await app.schedules.aremove("digest-42", by="ada", reason="has left")
        today = datetime.now(UTC)
        week = await app.schedules.abackfill("report", today - timedelta(days=7), today, by="ada", reason="new report")
        await until("report", week)
        print("reports of the last week:", week)


if __name__ == "__main__":
    asyncio.run(main())
