"""The example of limits: it runs as a program of its own, with a real worker, and prints what it says it shows."""

from __future__ import annotations

from tests.examples.test_examples import run


def test_each_tenant_gets_its_share_and_postings_keep_their_order(dsn: str) -> None:
    assert run("tenants", dsn) == [
        "the small tenant's mail was sent before all of the large one's: True",
        "postings: first, second, third",
        "never more than 10 at once: True",
    ]
