"""Commands that other distributions, such as faultline-proof, add to `faultline` by entry points."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from faultline.core.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "faultline.commands"
SECTION = "Proof"
#: Commands of faultline-proof. Without it, they print how to install it.
PROOF = ("demo", "drill", "explore", "simulate", "soak", "prove", "bench")


@cache
def installed() -> dict[str, EntryPoint]:
    """By name, in the order of `PROOF`, then alphabetically."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - late: most commands are our own

    found = {point.name: point for point in entry_points(group=GROUP)}
    order = [*(name for name in PROOF if name in found), *sorted(set(found) - set(PROOF))]
    return {name: found[name] for name in order}


def refuse_missing(name: str) -> None:
    if name in PROOF:
        raise ConfigError(f"`faultline {name}` needs the extra [proof]: pip install 'faultline-queue[proof]'")
