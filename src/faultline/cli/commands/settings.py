"""The command for settings of the whole database."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated

import typer

from faultline.cli import parse
from faultline.cli.commands.database import AsJson, Dsn, opened, print_json
from faultline.cli.setting_options import changing
from faultline.core.errors import ConfigError, SchemaAltered
from faultline.core.settings import DatabaseSettings, Setting, settings_of
from faultline.explain.formatting import span


@changing(DatabaseSettings)
def settings(
    settings: dict[str, str],
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

    known = {one.name: one for one in settings_of(DatabaseSettings)}
    changes = {name: _value(known[name], text) for name, text in settings.items()}
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
        print(f"{name:24} {shown:>16}  {known[name].about}")


def _value(setting: Setting, text: str) -> int:
    in_seconds = setting.name.endswith("_seconds")
    value: int = (
        setting.checked(math.ceil(parse.seconds(text)), setting.option, text)
        if in_seconds
        else setting.read(text, setting.option)
    )
    return value
