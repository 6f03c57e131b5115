"""The files of `web/static`, each under a name with a digest of its content, so that browsers may cache it forever."""

from __future__ import annotations

import hashlib
import mimetypes
import re
from pathlib import Path

from fastapi import APIRouter, Response
from starlette.exceptions import HTTPException

router = APIRouter(include_in_schema=False)
_FILES = {path.name: path.read_bytes() for path in (Path(__file__).parents[1] / "static").iterdir()}
_VERSIONS = {name: hashlib.sha256(content).hexdigest()[:12] for name, content in _FILES.items()}
_NAME = re.compile(r"(?P<stem>[a-zA-Z0-9.-]+)-(?P<version>[0-9a-f]{12})(?P<kind>\.[a-z]+)")


def address(name: str) -> str:
    """The URL of a file."""
    stem, _, kind = name.rpartition(".")
    return f"/static/{stem}-{_VERSIONS[name]}.{kind}"


@router.get("/static/{name}")
def asset(name: str) -> Response:
    found = _NAME.fullmatch(name)
    wanted = found["stem"] + found["kind"] if found else name
    if found is None or wanted not in _FILES:
        raise HTTPException(404)
    # A page of another version, served beside this one, gets this file and must not cache it.
    lasts = found["version"] == _VERSIONS[wanted]
    kept = {"Cache-Control": "public, max-age=31536000, immutable"} if lasts else {}
    return Response(_FILES[wanted], media_type=mimetypes.guess_type(wanted)[0], headers=kept)
