"""Commands for the keys of the HTTP API. A key's text is shown once, when it is created."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.cli.commands.database import AsJson, Dsn, opened
from faultline.core.errors import ConfigError, SetupError

if TYPE_CHECKING:
    from faultline.store.verbs.access import ApiKeyLine

keys = typer.Typer(
    help="Create, list and revoke the keys of the HTTP API.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

_DAY_SECONDS = 86_400.0
_Why = Annotated[str | None, typer.Option(metavar="TEXT", help="Recorded in the journal, with who did it.")]


@keys.command()
def create(
    name: Annotated[str, typer.Argument(help="The name of the key: who or what uses it.")],
    scope: Annotated[list[str], typer.Option(metavar="TEXT", help="read, enqueue, operate or admin; may be repeated.")],
    queue: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Restrict it to a queue; may be repeated. Default: all queues.")
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0.001, max=36_500, metavar="NUMBER", help="Days until it expires. Default: never.")
    ] = None,
    reason: _Why = None,
    dsn: Dsn = None,
    as_json: AsJson = False,  # noqa: FBT002 - a command's flag
) -> None:
    """Create a key and show it once. Only its digest is stored."""
    import random  # noqa: PLC0415 - late, so that --help is quick

    from faultline import operate  # noqa: PLC0415
    from faultline.store.verbs import access  # noqa: PLC0415

    unknown = sorted(set(scope) - set(access.SCOPES))
    if unknown:
        raise ConfigError(f"unknown scope {unknown[0]}; use read, enqueue, operate or admin")
    if not 1 <= len(name) <= 100:  # noqa: PLR2004 - the table's limit
        raise ConfigError("the name of a key must have 1 to 100 characters")
    key_id, text = access.new_key(random.SystemRandom())
    statement = operate.add_key(
        key_id,
        access.digest_of(text) or b"",
        name=name,
        scopes=sorted(set(scope)),
        queues=sorted(set(queue)) if queue else None,
        valid_seconds=None if days is None else days * _DAY_SECONDS,
        reason=reason,
        by=operate.this_user(),
    )
    with opened(dsn) as database:
        expires_at = database.run(statement)
    if as_json:
        print(json.dumps({"id": key_id, "key": text, "expires_at": expires_at}, default=str))
    else:
        print(text)
        typer.echo(f"id {key_id}; the key is not shown again", err=True)


@keys.command("list")
def list_keys(dsn: Dsn = None, as_json: AsJson = False) -> None:  # noqa: FBT002 - a command's flag
    """List all keys, without their secrets."""
    from faultline.store.verbs import access  # noqa: PLC0415

    with opened(dsn) as database:
        lines = database.run(access.lines())
    if as_json:
        print(json.dumps([asdict(line) for line in lines], default=str))
        return
    for line in lines:
        print(f"{line.id}  {line.name}  {','.join(line.scopes)}  {_where(line)}  {_how_long(line)}  {_who(line)}".rstrip())


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the key, as `api-keys list` shows it.")],
    reason: _Why = None,
    dsn: Dsn = None,
) -> None:
    """Revoke a key. Servers refuse it within two seconds."""
    from uuid import UUID  # noqa: PLC0415

    from faultline import operate  # noqa: PLC0415

    try:
        wanted = UUID(key_id)
    except ValueError as error:
        raise ConfigError(f"invalid key id {key_id}; `faultline api-keys list` shows the ids") from error
    with opened(dsn) as database:
        known = database.run(operate.revoke_key(wanted, reason=reason, by=operate.this_user()))
    if not known:
        raise SetupError(f"no key {key_id}; `faultline api-keys list` shows the ids")
    print("revoked")


def _where(line: ApiKeyLine) -> str:
    return "all queues" if line.queues is None else f"queues {','.join(line.queues)}"


def _who(line: ApiKeyLine) -> str:
    """If it is recorded: the journal is pruned."""
    from faultline import operate  # noqa: PLC0415

    signed = (("created", line.created_by, line.created_login), ("revoked", line.revoked_by, line.revoked_login))
    return "  ".join(f"{did} by {operate.signature({'by': by, 'login': login})}" for did, by, login in signed if by)


def _how_long(line: ApiKeyLine) -> str:
    if line.revoked_at is not None:
        return f"revoked {line.revoked_at:%Y-%m-%d %H:%M}"
    return "never expires" if line.expires_at is None else f"until {line.expires_at:%Y-%m-%d %H:%M}"
