"""Commands that other distributions add to `faultline`, by entry points. So does the proof."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from typer.main import get_command_from_info
from typer.models import CommandInfo

from faultline.core.errors import ConfigError

if TYPE_CHECKING:
    from typer.core import TyperCommand

GROUP = "faultline.commands"
SECTION = "Proof"
#: Commands of faultline-proof: whoever asks for one without it is told where it is.
PROOF = ("demo", "drill", "explore", "simulate", "soak", "prove", "bench")


@cache
def installed() -> dict[str, TyperCommand]:
    """By name, in the order in which the proof lists them, then by the alphabet."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - late: most commands are our own

    found = {point.name: point for point in entry_points(group=GROUP)}
    order = [*(name for name in PROOF if name in found), *sorted(set(found) - set(PROOF))]
    return {name: _command(name, found[name].load()) for name in order}


def _command(name: str, function: object) -> TyperCommand:
    info = CommandInfo(name=name, callback=function, rich_help_panel=SECTION)  # type: ignore[arg-type]  # whatever was named
    return get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=None)  # type: ignore[return-value]


def refuse_missing(name: str) -> None:
    if name in PROOF:
        raise ConfigError(
            f"`faultline {name}` belongs to the proof, which is not installed here: pip install 'faultline-queue[proof]'"
        )
