"""Who follows streams of jobs: how many they are, and whether the server stops."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from faultline.web.server.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline.web.auth.caller import Caller
    from faultline.web.server.databases import Limits


class Followers:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._callers: Counter[str] = Counter()
        #: They are to come to an end.
        self.is_closing = False

    def close(self) -> None:
        self.is_closing = True

    def __len__(self) -> int:
        return self._callers.total()

    @contextlib.contextmanager
    def joined(self, caller: Caller) -> Iterator[None]:
        """Counted while the block runs. Raises a `Problem` if there are too many."""
        if self._callers[caller.id] >= self._limits.streams_caller_max or len(self) >= self._limits.streams_max:
            raise Problem(429, "TooManyStreams", "There are too many live streams.", next_step="Close one of them.")
        self._callers[caller.id] += 1
        try:
            yield
        finally:
            self._callers[caller.id] -= 1
            if not self._callers[caller.id]:
                del self._callers[caller.id]
