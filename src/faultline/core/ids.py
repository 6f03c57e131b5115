"""Time-ordered ids (UUID version 7), in the database's time, so that a client's wrong clock does not change their order."""

from __future__ import annotations

import random
import string
import threading
import time
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable

#: Ids begin with their time: a shorter prefix would match a day of jobs, or more.
PREFIX_DIGITS_MIN = 6
_DIGITS = 32


class Ids:
    """A source of job ids. Every call returns greater ids than the call before, even if the clock was set back."""

    def __init__(self, seconds: Callable[[], float] = time.time, chance: random.Random | None = None) -> None:
        self._seconds = seconds
        self._chance = chance or random.SystemRandom()
        self._making = threading.Lock()
        self._last = 0

    def new(self) -> UUID:
        return UUID(int=self.new_number())

    def new_number(self) -> int:
        return self.new_numbers(1)[0]

    def new_numbers(self, count: int) -> list[int]:
        """48 bits of milliseconds, 12 bits of their fraction, 18 bits that count within this call, 44 random bits.

        Reads time and random bits once: a call for each id would take as long as the rest.
        """
        with self._making:
            self._last = ticks = max(int(self._seconds() * 4_096_000), self._last + 1)
        high = ((ticks >> 12) << 16 | 0x7000 | (ticks & 0xFFF)) << 64 | 0b10 << 62
        chance = self._chance.getrandbits(48 * count).to_bytes(6 * count)
        return [
            high | (index & 0x3FFFF) << 44 | int.from_bytes(chance[6 * index : 6 * index + 6]) >> 4 for index in range(count)
        ]


def id_range(prefix: str) -> tuple[UUID, UUID] | None:
    """The least and the greatest id with this prefix of hexadecimal digits; None if it is invalid. Dashes are ignored."""
    digits = prefix.replace("-", "")
    if not 1 <= len(digits) <= _DIGITS or not set(digits) <= set(string.hexdigits):
        return None
    return UUID(digits.ljust(_DIGITS, "0")), UUID(digits.ljust(_DIGITS, "f"))
