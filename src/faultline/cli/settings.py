"""The command about settings: what holds for every program on this database."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated

import typer

from faultline.cli import values
from faultline.cli.database import AsJson, Dsn, opened, print_json
from faultline.core.errors import ConfigError, SchemaAltered
from faultline.drawing.words import span

_ABOUT = {
    "args_bytes_max": "largest arguments of a job",
    "result_bytes_max": "largest result of a job; workers read it when they start",
    "keep_succeeded_seconds": "how long succeeded jobs are kept",
    "keep_failed_seconds": "how long failed and cancelled jobs are kept",
    "keep_journal_seconds": "how long the journal is kept",
    "keep_keys_seconds": "how long idempotency keys are kept",
}


def settings(
    args_bytes_max: Annotated[int | None, typer.Option(help="Largest arguments of one job. Default: 1048576.")] = None,
    result_bytes_max: Annotated[int | None, typer.Option(help="Largest result of one job. Default: 1048576.")] = None,
    keep_succeeded: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Keep succeeded jobs so long: 12h, 7d, 4w. Default: 7d.")
    ] = None,
    keep_failed: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Keep failed and cancelled jobs so long. Default: 30d.")
    ] = None,
    keep_journal: Annotated[str | None, typer.Option(metavar="SPAN", help="Keep the journal so long. Default: 30d.")] = None,
    keep_keys: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Keep idempotency keys so long. Default: 30d.")
    ] = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Recorded with who did it.")] = None,
    dsn: Dsn = None,
    as_json: AsJson = False,  # noqa: FBT002 - a command's flag
) -> None:
    """Show or change sizes and retention, for every program on this database.

    Workers delete what is older within a minute. A change is recorded in the journal, with who made it and why.

    \b
    Examples:
      faultline settings
      faultline settings --keep-succeeded 2d --reason "the disk is small"
      faultline settings --args-bytes-max 4194304
    """
    from faultline import operate  # noqa: PLC0415 - late, so that --help is quick
    from faultline.store.reads import views  # noqa: PLC0415

    kept = {"succeeded": keep_succeeded, "failed": keep_failed, "journal": keep_journal, "keys": keep_keys}
    asked = {"args_bytes_max": args_bytes_max, "result_bytes_max": result_bytes_max}
    asked |= {f"keep_{what}_seconds": None if text is None else _seconds(text) for what, text in kept.items()}
    changes = {name: value for name, value in asked.items() if value is not None}
    if reason is not None and not changes:
        raise ConfigError("--reason is kept with a change, and nothing is changed here; name a setting and its value")
    by = operate.this_user()
    with opened(dsn) as database:
        if changes:
            database.run_all([operate.change_setting(name, value, reason=reason, by=by) for name, value in changes.items()])
        seen = database.run(views.settings())
    if seen is None:
        raise SchemaAltered("the row of faultline.settings is gone; run: faultline migrate")
    found = asdict(seen)
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        shown = f"{value:,} bytes" if name.endswith("bytes_max") else span(value)
        print(f"{name:24} {shown:>16}  {_ABOUT[name]}")


def _seconds(text: str) -> int:
    return math.ceil(values.seconds(text))
