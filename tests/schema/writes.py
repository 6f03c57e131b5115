"""Every verb that writes under a lease, called the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.store import verbs

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.model import Lease, Settled
    from tests.driver import Driver


VERBS: dict[str, Callable[[Driver, Lease], Settled]] = {
    "renew": lambda q, lease: q.renew(lease),
    "complete": lambda q, lease: q.complete(lease),
    "fail": lambda q, lease: q.fail(lease),
    "release": lambda q, lease: q.release(lease),
    "mark_started": lambda q, lease: q.mark_started(lease),
    "step": lambda q, lease: q.run(verbs.step(lease, "s", 1)),
    "progress": lambda q, lease: q.run(verbs.progress(lease, {"percent": 50})),
}
