"""The guards of schedules against those who may touch other queues only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

_ALIASES = {"pause_schedule": "s", "resume_schedule": "s", "remove_schedule": "s", "run_schedule": "c", "backfill": "c"}

GUARDS: Guards = {
    **{
        verb: {
            "finds none of another queue": (
                f"coalesce({alias}.spec -> 'job' ->> 'queue', 'default') = any ({verb}.only_queues)",
                "true",
            )
        }
        for verb, alias in _ALIASES.items()
    },
    "set_schedule": {
        "takes none from another queue": ("array[was.spec, wanted]", "array[wanted]"),
        "moves none to another queue": ("array[was.spec, wanted]", "array[was.spec]"),
    },
}
