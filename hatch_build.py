"""The README as it is published: where a package index shows it, links within this repository lead nowhere.

They are made absolute, with the address of the source in pyproject.toml. The file keeps links that work in a checkout.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(\]\(|^\[\w+\]: )(?!https?:|#)([^)\s]+)", re.MULTILINE)


def published(readme: str, source: str) -> str:
    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[2].endswith(".png") else "blob"
        return f"{link[1]}{source}/{kind}/main/{link[2]}"

    return LINK.sub(absolute, readme)


class PublishedReadme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text()
        metadata["readme"] = {"content-type": "text/markdown", "text": published(text, metadata["urls"]["Source"])}
