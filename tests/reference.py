"""The tables of docs/reference that the code already says: `python -m tests.reference` writes them anew.

A table stands between `<!-- begin NAME -->` and `<!-- end NAME -->`; everything else on the page is written by hand. Classes
and their methods are not among them: Sphinx reads their docstrings.
"""

from __future__ import annotations

import ast
import itertools
import logging
import operator
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faultline.core.events import LEVELS
from faultline.core.journal import JournalEvent
from faultline.core.settings import CommonSettings, DatabaseSettings, ServeSettings, Setting, WorkerSettings, settings_of
from faultline.store.install.schema_text import function_text
from tests.words import commands

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg
    from prometheus_client import Metric

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs/reference"
ROLES = ("producer", "worker", "viewer", "operator")


def command_line() -> str:
    """Every command with its arguments and options."""
    parts = []
    for name, command in commands():
        about = (command.help or "").partition("\n\n")[0].replace("\n", " ").strip()
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        usage = " ".join([f"faultline {name}", *(_argument(param) for param in arguments)])
        rows = [
            f"| `{', '.join([*param.opts, *param.secondary_opts])}` | {param.help or ''} |"
            for param in command.params
            if param.param_type_name == "option"
            and not param.hidden
            and param.name not in ("help", "install_completion", "show_completion")
        ]
        table = ["", "| option | |", "|---|---|", *rows] if rows else []
        parts.append("\n".join([f"## `{usage}`", "", about, *table]))
    return "\n\n".join(parts)


def _argument(param: Any) -> str:
    word = param.metavar or param.name.upper()
    return word if param.required or word.startswith("[") else f"[{word}]"


def http_paths() -> str:
    """Every path of the HTTP service that OpenAPI describes."""
    from faultline.web.app import create_app  # noqa: PLC0415 - an extra

    described = create_app("postgresql://nowhere").openapi()
    lines = ["| | | |", "|---|---|---|"]
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            about = (route.get("description") or route.get("summary") or "").partition("\n")[0].replace("|", "\\|")
            lines.append(f"| `{method.upper()}` | `{path}` | {about} |")
    return "\n".join(lines)


#: The families of verbs, by the folders of the schema, in the order of a job's life.
FAMILIES = {
    "submit": "Submit",
    "lease": "Hold a lease",
    "flow": "Flows",
    "limit": "Limits",
    "schedule": "Schedules",
    "operate": "Operate",
    "upkeep": "Upkeep of the workers",
    "measure": "Measure",
    "access": "API keys",
    "internal": "For everyone",
}


def _family(function: str) -> str:
    """A verb has a file of its own, in the folder of its subject."""
    schema = ROOT / "src/faultline/schema"
    found = [path.parent.name for path in schema.glob(f"*/{function}.sql")]
    return found[0] if found else "internal"


def sql_verbs(connection: psycopg.Connection) -> str:
    """Every function that a role may call, as the catalogue has it."""
    rows = connection.execute(
        "select p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),"
        " array(select r from unnest(%s::text[]) r where has_function_privilege('faultline_' || r, p.oid, 'execute'))"
        " from pg_proc p where p.pronamespace = 'faultline'::regnamespace order by 1, 2",
        (list(ROLES),),
    ).fetchall()
    families: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for name, found in itertools.groupby([row for row in rows if row[3]], key=operator.itemgetter(0)):
        overloads = list(found)
        roles = overloads[0][3]
        who = "everyone" if set(roles) == set(ROLES) else ", ".join(roles)
        # Overloads differ in the type of their JSON alone, which the page says.
        signature = max((_signature(name, arguments, result) for _, arguments, result, _ in overloads), key=len)
        families[_family(name)].append(f"### `{name}`\n\n```sql\n{signature}\n```\n\n{_sql_comment(name)} For {who}.")
    shown = "\n\n".join("\n\n".join([f"## {FAMILIES[family]}", *told]) for family, told in families.items() if told)
    named_rows = _rows(connection, set(re.findall(r"returns setof (\w+)", shown)))
    return f"{shown}\n\n## Rows with a name\n\n{named_rows}"


def _rows(connection: psycopg.Connection, types: set[str]) -> str:
    """What stands in the rows that several functions return alike."""
    columns = connection.execute(
        "select c.relname,"
        " string_agg(concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' order by a.attnum)"
        " from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped"
        " where c.relnamespace = 'faultline'::regnamespace and c.relkind = 'c' and c.relname = any (%s)"
        " group by 1 order by 1",
        (list(types),),
    ).fetchall()
    return "\n\n".join(f"`{name}`: {_short(text).replace('faultline.', '')}." for name, text in columns)


def _signature(name: str, arguments: str, result: str) -> str:
    takes = _short(re.sub(r"::[\w ]+(\[\])?(?=,|$)", "", arguments))
    line = f"{name}({takes}) returns {_short(result)}"
    if len(line) <= 100:
        return line
    return re.sub(r", ", ",\n  ", re.sub(r"\((?=\w+ )", "(\n  ", line)).replace(")", "\n)")


def _short(signature: str) -> str:
    short = signature.replace("timestamp with time zone", "timestamptz").replace("double precision", "float8")
    return re.sub(r"\b(DEFAULT|TABLE|SETOF|NULL)\b", lambda word: word[0].lower(), short)


def _sql_comment(function: str) -> str:
    """The first sentence above a function."""
    above = function_text(function).partition("create or replace")[0]
    comment = " ".join(line.removeprefix("--").strip() for line in above.splitlines())
    return re.split(r"(?<=\.)\s", comment)[0].replace("|", "\\|").strip()


def event_names() -> str:
    """Every event that the package emits, with the fields that are named at the call."""
    found: dict[str, set[str]] = {}
    details: set[str] = set()
    for path in sorted((ROOT / "src/faultline").rglob("*.py")):
        if path.relative_to(ROOT / "src/faultline").parts[0] in ("proof", "bench"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _called(node) in ("emit", "emit_detail", "_warn", "logged") and node.args:
                name = node.args[-1]
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    fields = {word.arg for word in node.keywords if word.arg and word.arg not in ("level", "done")}
                    found.setdefault(name.value, set()).update(fields)
                    if _called(node) == "emit_detail":
                        details.add(name.value)
    lines = ["| event | fields | level |", "|---|---|---|"]
    for event, named in sorted(found.items()):
        level = "debug" if event in details else logging.getLevelName(LEVELS.get(event, 0)).lower()
        lines.append(f"| `{event}` | {', '.join(f'`{field}`' for field in sorted(named))} | {level} |")
    return "\n".join(lines)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def metric_names() -> str:
    """Every metric, as a scrape of the API shows it; a worker tells the first of them."""
    lines = ["| metric | | labels | |", "|---|---|---|---|"]
    for family in metrics():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in family._labelnames)  # type: ignore[attr-defined]  # noqa: SLF001
        lines.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(lines)


def metrics() -> list[Metric]:
    from faultline.integrations.prometheus import Exposition  # noqa: PLC0415 - an extra
    from faultline.integrations.prometheus.board import Checked, Seen  # noqa: PLC0415
    from faultline.store.reads.suspended import FlowTotals  # noqa: PLC0415
    from faultline.store.reads.tick_history import ScheduleTotals  # noqa: PLC0415

    class Empty:
        @staticmethod
        def read() -> Seen:
            counted = {"flows": FlowTotals({}, 0.0, 0), "schedules": ScheduleTotals({}, 0.0, 0), "limits": []}
            return Seen([], [], workers_alive=0, workers_silent=0, **counted)  # type: ignore[arg-type]

        @staticmethod
        def checked() -> Checked:
            return Checked()

    return list(Exposition(board=Empty()).collect())  # type: ignore[arg-type]


def journal_events() -> str:
    """Every event of the journal, as it is declared."""
    lines = ["| event | about | |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| `{event}` | {event.kind.about} | {event.kind.meaning} |" for event in JournalEvent)])


def settings_table(kind: type) -> str:
    """The settings of one kind, as the catalogue has them."""
    shown: dict[str, Callable[[Setting], str]] = {
        "setting": lambda one: f"`{one.name}`",
        "option": lambda one: f"`{one.option}`" if one.option else "",
        "variable": lambda one: ", else ".join(f"`{name}`" for name in one.variables),
        "Python": lambda one: f"`{one.python}`" if one.python else "",
        "default": lambda one: one.shown_default,
        "must be": lambda one: one.allowed,
        "": lambda one: one.about,
    }
    entries = list(settings_of(kind))
    columns = {title: show for title, show in shown.items() if not title or any(map(show, entries))}
    rows = [list(columns), ["---"] * len(columns), *([show(one) for show in columns.values()] for one in entries)]
    return "\n".join(f"| {' | '.join(row)} |".replace("  ", " ") for row in rows)


SETTINGS = {
    "common settings": CommonSettings,
    "worker settings": WorkerSettings,
    "serve settings": ServeSettings,
    "database settings": DatabaseSettings,
}
PARTS: dict[str, Callable[[], str]] = {
    **{name: partial(settings_table, kind) for name, kind in SETTINGS.items()},
    "commands": command_line,
    "paths": http_paths,
    "events": event_names,
    "journal": journal_events,
    "metrics": metric_names,
}
#: The page of each table.
PAGE = {
    **dict.fromkeys(SETTINGS, PAGES / "settings.md"),
    "commands": PAGES / "command-line.md",
    "paths": PAGES / "http.md",
    "events": PAGES / "events.md",
    "journal": PAGES / "events.md",
    "metrics": PAGES / "metrics.md",
    "verbs": PAGES / "sql.md",
}


def part(name: str) -> str:
    """The table of this name, as it stands on its page."""
    found = re.search(rf"<!-- begin {name} -->\n(.*?)\n<!-- end {name} -->", PAGE[name].read_text(), re.DOTALL)
    assert found is not None, f"{PAGE[name].relative_to(ROOT)} has no part {name}"
    return found[1]


def rewrite(name: str, content: str) -> None:
    before, _, rest = PAGE[name].read_text().partition(f"<!-- begin {name} -->\n")
    after = rest.partition(f"<!-- end {name} -->")[2]
    PAGE[name].write_text(f"{before}<!-- begin {name} -->\n{content}\n<!-- end {name} -->{after}")


def main() -> None:
    import tempfile  # noqa: PLC0415

    import psycopg as driver  # noqa: PLC0415

    from faultline import embedded  # noqa: PLC0415
    from faultline.store.install import migrate  # noqa: PLC0415

    with (
        tempfile.TemporaryDirectory() as folder,
        embedded.join(Path(folder) / "db", settings={"fsync": "off"}) as server,
        driver.connect(server.dsn, autocommit=True) as connection,
    ):
        migrate.migrate(connection)
        for name, content in {**{name: make() for name, make in PARTS.items()}, "verbs": sql_verbs(connection)}.items():
            rewrite(name, content)


if __name__ == "__main__":
    main()
