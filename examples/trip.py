"""Book a flight, a hotel and a car, or nothing at all.

Watch: the hotel has no room, so the saga undoes what was done, in reverse order: the flight is cancelled. The hotel's own
undo runs as well, because nobody can know whether the booking that failed has left something behind: an undo must accept
that there is nothing to undo. That the trip failed is recorded before the first undo runs. So a worker that dies in
between goes on undoing, and never books again.

    export FAULTLINE_DSN=embedded:
    faultline migrate
    python examples/trip.py
"""

import asyncio

from faultline import Faultline, Job, JobFailed

app = Faultline()

FULL = {"Utopia"}  # cities without a free room
bookings: list[str] = []


class NoRoom(Exception):
    """The hotel is full."""


@app.step
async def book_flight(city: str) -> str:
    bookings.append(f"flight to {city}")
    return f"F-{city}"


@app.step
async def cancel_flight(reference: str | None, city: str) -> None:
    print(f"  undo: flight {reference}")
    bookings.remove(f"flight to {city}")


@app.step
async def book_hotel(city: str) -> str:
    if city in FULL:
        raise NoRoom(f"no room in {city}")
    bookings.append(f"hotel in {city}")
    return f"H-{city}"


@app.step
async def cancel_hotel(reference: str | None, city: str) -> None:
    print(f"  undo: hotel {reference or '(perhaps booked)'}")
    if f"hotel in {city}" in bookings:
        bookings.remove(f"hotel in {city}")


@app.task(queue="trips")
async def charge(city: str) -> str:
    return f"C-{city}"


@app.step
async def refund(receipt: str | None, city: str) -> None:
    print(f"  undo: charge {receipt or '(perhaps made)'} for {city}")


@app.task(queue="trips")
async def trip(job: Job, city: str) -> list[str]:
    async with job.saga() as saga:
        flight = await saga.do(book_flight, city, undo=cancel_flight)
        hotel = await saga.do(book_hotel, city, undo=cancel_hotel)
        await saga.call(charge, city, undo=refund)
    return [flight, hotel]


async def main() -> None:
    async with app, app.worker():
        for city in ("Lisbon", "Utopia"):
            handle = await trip.aenqueue(city)
            try:
                print(f"{city}: {await handle.aresult(timeout=30)}")
            except JobFailed as error:
                print(f"{city}: {error}".splitlines()[0])
    print("booked:", bookings)


if __name__ == "__main__":
    asyncio.run(main())
