"""A task, a job, a worker and a result, in one process.

Watch: `enqueue` only writes a row. It is the worker that runs the function, and it could as well be on another machine.

    export FAULTLINE_DSN=embedded:
    faultline migrate
    python examples/hello.py
"""

import asyncio

from faultline import Faultline

app = Faultline()


@app.task(queue="hello")
async def greet(name: str) -> str:
    return f"Hello, {name}!"


async def main() -> None:
    async with app, app.worker():
        handle = await greet.aenqueue("world")
        print(await handle.aresult(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
