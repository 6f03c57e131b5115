"""One self-contained page: no script, nothing fetched from anywhere, light and dark, and whatever was found is escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.explain.svg import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline_proof.verdict import Check

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --panel: #f6f7f9; --ink: #1b2230; --soft: #5c6675; --line: #e2e5eb;
  --lease: #3a6ed8; --pale: #c3cad6; --bad: #cc2936; --good: #1f8a4c; --fault: #a65d03;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12161d; --panel: #191f29; --ink: #e4e8ef; --soft: #98a2b3; --line: #2a323f;
    --lease: #6f9cf5; --pale: #47515f; --bad: #ff6b72; --good: #4cc282; --fault: #e3a04f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 64rem; padding: clamp(1.25rem, 4vw, 3.5rem); background: var(--paper); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Inter, Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}
h1 { margin: 0; font-size: 1.75rem; line-height: 1.25; letter-spacing: -0.015em; }
h2 { margin: 0; font-size: 1.3rem; line-height: 1.3; letter-spacing: -0.01em; }
h3 { margin: 2rem 0 0.6rem; font-size: 0.8rem; font-weight: 600; color: var(--soft); }
p { margin: 0.4rem 0 0; max-width: 44rem; }
section { margin-top: 3.5rem; }
.soft, figcaption, summary { color: var(--soft); font-size: 0.9rem; }
.verdict { margin-left: 0.6rem; padding: 0.15em 0.7em; border-radius: 1em; font-size: 0.8rem; font-weight: 600;
  vertical-align: 0.15em; letter-spacing: 0; border: 1px solid currentcolor; }
.held { color: var(--good); } .broken { color: var(--bad); } .skipped { color: var(--soft); }
figure { margin: 1.5rem 0 0; }
.scroll { overflow-x: auto; padding: clamp(0.75rem, 2.5vw, 1.25rem); background: var(--panel); border-radius: 12px; }
figcaption { margin-top: 0.7rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.95rem; }
th { text-align: left; font-weight: 600; font-size: 0.8rem; color: var(--soft); }
td, th { padding: 0.5rem 1rem 0.5rem 0; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
th { white-space: nowrap; overflow-wrap: normal; } td.text { min-width: 4rem; } h2 + table { margin-top: 0.8rem; }
td.number, th.number { text-align: right; padding-right: 0; white-space: nowrap; }
td.mark { width: 1%; padding-right: 1.5rem; white-space: nowrap; font-weight: 600; }
ul, ol { margin: 0; padding-left: 1.2rem; }
details { margin-top: 1rem; } summary { cursor: pointer; } details ol { margin-top: 0.6rem; font-size: 0.9rem; }
.legend { display: flex; flex-wrap: wrap; gap: 0.4rem 1.6rem; margin: 1.5rem 0 0; padding: 0; list-style: none;
  color: var(--soft); font-size: 0.85rem; }
.legend li { display: flex; align-items: center; gap: 0.5rem; } .legend svg { flex: none; overflow: visible; }
"""


def page(title: str, body: str, *, style: str = "") -> str:
    """A whole document. `body` is markup that holds only escaped text; the title is escaped here."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        # Should something hostile get through all the same, the browser neither runs nor fetches it.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n"
        f"<title>{escaped(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def badge(text: str, kind: str) -> str:
    return f'<span class="verdict {kind}">{escaped(text)}</span>'


def table(columns: list[tuple[str, str]], rows: list[list[str]]) -> str:
    """A table of cells that are markup already. Of a column it is told its name and what it is: `mark`, `number` or text."""

    def cells(tag: str, row: list[str]) -> str:
        return "".join(f'<{tag} class="{kind}">{cell}</{tag}>' for (_, kind), cell in zip(columns, row, strict=True))

    named = cells("th", [escaped(name) for name, _ in columns])
    head = f"<thead><tr>{named}</tr></thead>\n" if any(name for name, _ in columns) else ""
    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table>\n{head}<tbody>\n{body}\n</tbody>\n</table>"


def checked(checks: Sequence[Check]) -> str:
    """What had to be true, and what was found."""
    rows = [
        [
            '<span class="held">ok</span>' if check.holds else '<span class="broken">broken</span>',
            escaped(check.claim),
            escaped(", ".join(map(str, check.found)) or "none" if isinstance(check.found, list) else check.found),
        ]
        for check in checks
    ]
    return table([("", "mark"), ("claim", "text"), ("found", "text")], rows)
