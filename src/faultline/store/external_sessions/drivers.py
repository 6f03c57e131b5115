"""What a library's own connection says of itself, without asking the server: psycopg, psycopg2, asyncpg."""

from __future__ import annotations

from typing import Any

from psycopg.pq import TransactionStatus


def is_closed(driver: Any) -> bool:
    if hasattr(driver, "is_closed"):  # asyncpg
        return bool(driver.is_closed())
    return bool(driver.closed)


def status(driver: Any) -> TransactionStatus:
    if is_closed(driver):
        return TransactionStatus.UNKNOWN
    if hasattr(driver, "is_in_transaction"):  # asyncpg, which does not say whether a statement has failed
        return TransactionStatus.INTRANS if driver.is_in_transaction() else TransactionStatus.IDLE
    return TransactionStatus(driver.info.transaction_status)


def fileno(driver: Any) -> int:
    """Its socket, to cut the connection from another thread."""
    if hasattr(driver, "is_in_transaction"):  # asyncpg has no public way
        found: int = driver._transport.get_extra_info("socket").fileno()  # noqa: SLF001
        return found
    number: int = driver.fileno()
    return number
