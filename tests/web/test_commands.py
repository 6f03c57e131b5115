"""`faultline serve` and `faultline api-keys`, as people run them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from faultline import operate
from tests.cli import commands

COMMAND = [sys.executable, "-m", "faultline"]


def faultline(dsn: str, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.faultline(*words, FAULTLINE_DSN=dsn)


def test_a_key_is_shown_once_listed_without_its_secret_and_revoked(dsn: str) -> None:
    made = json.loads(faultline(dsn, "api-keys", "create", "ci", "--scope", "read", "--queue", "a", "--json").stdout)
    listed = faultline(dsn, "api-keys", "list").stdout

    assert made["key"].startswith("fl_")
    assert made["id"] in listed
    assert "queues a" in listed
    assert made["key"] not in listed
    assert faultline(dsn, "api-keys", "revoke", made["id"]).stdout == "revoked\n"
    after = faultline(dsn, "api-keys", "list").stdout
    assert "revoked 2" in after
    assert f"created by {operate.this_user()}" in listed
    assert "revoked by" not in listed
    assert f"revoked by {operate.this_user()}" in after
    unknown = faultline(dsn, "api-keys", "create", "ci", "--scope", "everything")
    assert unknown.stderr.startswith("faultline: unknown scope everything")


def test_without_keys_serve_refuses_other_addresses_in_a_sentence(dsn: str) -> None:
    refused = faultline(dsn, "serve", "--host", "0.0.0.0", "--port", "0")  # noqa: S104 - that is the point

    assert refused.returncode == 1
    assert "there are no API keys" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.long
def test_serve_runs_until_it_is_told_to_stop(dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with subprocess.Popen(
        [*COMMAND, "serve", "--port", str(port)],
        env={**os.environ, "FAULTLINE_DSN": dsn},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert _answers(f"http://127.0.0.1:{port}/ready")
        finally:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)

    assert f"listening on http://127.0.0.1:{port}" in out
    assert "Traceback" not in err
    assert process.returncode == 0


def _answers(address: str) -> bool:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            return httpx.get(address, verify=False, timeout=30).status_code == 200  # noqa: S501 - plain HTTP
        except httpx.ConnectError:
            time.sleep(0.05)
    return False
