"""The benchmark of the HTTP service runs, and asks for what it says."""

from __future__ import annotations

import asyncio

import pytest

from faultline_proof.bench import service

pytestmark = pytest.mark.long


def test_every_figure_is_measured(dsn: str) -> None:
    figures = {figure.name: figure.value for figure in service.measure(dsn, ledger=500, seconds=0.5, tell=lambda _: None)}

    assert len(figures) == 4 + 5 + 5 + 1 + 4
    assert all(value >= 0 for value in figures.values())
    assert all(figures[f"submissions {how}, p50"] > 0 for how in ("over HTTP", "with a key of their own"))


def test_a_client_that_fails_ends_the_measurement() -> None:
    async def refused() -> None:
        raise RuntimeError("a submission was refused")

    async def measured() -> None:
        todo: asyncio.Queue[float] = asyncio.Queue()
        todo.put_nowait(0.0)
        async with asyncio.timeout(10):
            await service._all_done(todo, [asyncio.create_task(refused())])  # noqa: SLF001

    with pytest.raises(RuntimeError, match="refused"):
        asyncio.run(measured())
