"""Durations as people read them: as short as is useful."""

from __future__ import annotations


def span(seconds: float) -> str:
    """85 ms, 3.2 s, 40 s, 12 min, 5 h, 3 d."""
    for limit, told in (
        (0.0995, f"{seconds * 1000:.0f} ms"),
        (9.95, f"{seconds:.1f} s"),
        (99.5, f"{seconds:.0f} s"),
        (5400, f"{seconds / 60:.0f} min"),
        (172800, f"{seconds / 3600:.0f} h"),
    ):
        if abs(seconds) < limit:
            return told
    return f"{seconds / 86400:.0f} d"
