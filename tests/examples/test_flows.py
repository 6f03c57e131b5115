"""The examples of flows: each runs as a program of its own, with real workers, and prints what it says it shows."""

from __future__ import annotations

import pytest

from tests.examples.test_examples import run


def test_the_article_is_drafted_and_published_once_although_its_worker_stops_while_it_waits(dsn: str) -> None:
    said = run("article", dsn)

    assert said == [
        "the program runs, under token 1",
        "  request 1: overloaded",
        "  request 2: overloaded",
        "  request 3: paid",
        "the worker has stopped; the job waits: queued",
        "signal sent, new: True",
        "signal sent, new: False",
        "the program runs, under token 2",
        "published: All about lighthouses.",
        "requests: 3, paid: 1, published: 1",
    ]


def test_the_trip_is_booked_as_a_whole_or_undone(dsn: str) -> None:
    said = run("trip", dsn)

    assert said[0] == "Lisbon: ['F-Lisbon', 'H-Lisbon']"
    assert said[1:3] == ["  undo: hotel (perhaps booked)", "  undo: flight F-Utopia"]
    assert "no room in Utopia" in said[3]
    assert said[4] == "booked: ['flight to Lisbon', 'hotel in Lisbon']"


def test_the_nightly_report_is_sent_whatever_happens_to_the_load(dsn: str) -> None:
    said = run("nightly", dsn)

    assert said[0] == "2026-11-16: 1000 rows loaded"
    assert said[1].startswith("2026-11-17: nothing loaded, cancelled")


def test_the_corpus_is_merged_from_all_documents_that_can_be_read(dsn: str) -> None:
    said = run("corpus", dsn)

    assert said == [
        "997 of 1000 documents, 1994 words",
        "children: 1000, merged: 1, the program ran 2 times",
    ]


def test_the_agent_asks_before_it_deletes_starts_over_and_shows_tokens(dsn: str) -> None:
    pytest.importorskip("httpx", reason="the agent needs httpx")

    said = run("agent", dsn)

    assert said[:4] == [
        "  the model turns a request away",
        "  a person allows it",
        "  deleting customer 2",
        "  starting over, with an empty history",
    ]
    tokens = [line.removeprefix("  token: ") for line in said[4:-2]]
    assert " ".join(tokens) == "Ada is customer 1. Grace, customer 2, is deleted."
    assert said[-2:] == ["answer: Ada is customer 1. Grace, customer 2, is deleted.", "customers left: {1: 'Ada'}"]


@pytest.mark.parametrize("example", ["agent_pydantic_ai", "agent_openai_agents"])
def test_the_agent_of_a_framework_asks_before_it_deletes_and_repeats_nothing(dsn: str, example: str) -> None:
    said = run(example, dsn)

    assert said == [
        "the program runs, under token 1",
        "  a person allows it",
        "the program runs, under token 2",
        "  deleting customer 2",
        "  requests: 3, tokens: 45",
        "  tokens: Ada is customer 1. Grace, customer 2, is deleted.",
        "answer: Ada is customer 1. Grace, customer 2, is deleted.",
        "customers left: {1: 'Ada'}",
    ]
