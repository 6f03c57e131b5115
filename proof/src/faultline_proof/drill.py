"""A drill: a named failure story, and how it is played."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline_proof.stage import Stage
from faultline_proof.verdict import CannotPlay

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline_proof.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Drill:
    """A named failure story."""

    name: str
    story: str
    play: Callable[[Stage], None]


def run(drill: Drill, server_dsn: str, *, mutant: str = "") -> Verdict:
    """Play one drill on a stage of its own. An error in the middle is a failed check, with its text."""
    with Stage(drill.name, server_dsn, mutant=mutant) as stage:
        try:
            drill.play(stage)
        except CannotPlay as missing:
            stage.verdict.skipped = str(missing)
        except Exception as error:  # noqa: BLE001 - whatever it was, the trace tells the rest
            stage.verdict.holds("the story was played to its end", f"{type(error).__name__}: {error}", holds=False)
    return stage.verdict
