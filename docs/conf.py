"""How Sphinx builds the documentation: `make docs`. Warnings are errors, so a broken link or anchor fails `make check`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from faultline.core import errors

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

project = "Faultline"
version = release = PROJECT["version"]
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence", "fieldlist"]
myst_heading_anchors = 4
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!faultline\.).*"),  # names of other packages: their documentation is not at hand where this one is built
    ("py:obj", ".*"),  # what a docstring puts between backticks may be any piece of code
    # Type variables, and what only a type checker sees.
    (
        "py:class",
        r"faultline\..*\.([A-G]|P|R|R_co|T|Whole|Around|OnJob|OnError|OnEnqueue|Opening|Graphs|TaskDecorator|Databases|Pending|Mishap)",
    ),
]

html_theme = "furo"
html_title = f"Faultline {release}"
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

# Every page carries the tree of all pages; with each method in it a build takes half as long again.
toc_object_entries = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# Docstrings mark code with single backticks, as Markdown does; a name that is documented becomes a link.
default_role = "py:obj"
#: Public for Faultline's own modules, and no promise to other programs.
INNER = {
    "abandon", "async_database", "check", "database", "decided", "declarations", "declared_queues", "enqueued",
    "declared_budgets", "queue_declarations", "budget_declarations", "filled_group", "filled_unique", "flush_streams", "fn",
    "group_template", "handles", "hooks", "host",
    "batch", "processes",
    "is_async", "is_streaming", "pause_seconds", "poller", "program", "reading", "route", "run_by", "schedule_declarations",
    "forget_types", "results", "returned_by", "rules", "spread",
    "signature", "stated", "submitted",
    "subscriptions", "takes_job", "timed_out",
}  # fmt: skip


def skip(_app: Any, _what: str, name: str, _member: object, skipped: bool, _options: Any) -> bool:  # noqa: FBT001
    return skipped or name in INNER


def say_more(_app: Any, what: str, name: str, _member: object, _options: Any, lines: list[str]) -> None:
    """Without a docstring, an async twin names its blocking twin, and an error repeats its line in the tree of errors."""
    if any(lines):
        return
    twin = re.fullmatch(r".*\.a(\w+)", name)
    told = re.search(rf"─ {name.rpartition('.')[2]}\b *(?:\(FL\d+\))? *(.*)", errors.__doc__ or "")
    if what == "method" and twin:
        lines[:] = [f"`{twin[1]}` for async programs."]
    elif told:
        lines[:] = [f"{told[1][:1].upper()}{told[1][1:]}."]


def leave_out_of_the_sidebar(app: Any, _doctree: object) -> None:
    """A hundred decisions in the sidebar of every page help nobody, and are most of what a build takes."""
    if app.env.docname.startswith("decisions/2"):
        app.env.metadata[app.env.docname]["orphan"] = True


def setup(app: Any) -> None:
    app.connect("doctree-read", leave_out_of_the_sidebar)
    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-docstring", say_more)
