"""What comes over the wire and is no good HTTP: each has an answer that is as clean as any other."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from faultline.web.auth.proxies import Proxies
from faultline.web.server.server import server
from tests.conftest import clone
from tests.web.conftest import QUICK, Api, new_key, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Servers
    from tests.driver import Driver

PATIENCE = 30
#: More than fit into a burst, also on a machine that takes its time.
TRIES = 500
WRONG = f"fl_{'0' * 12}_{'A' * 43}"


@pytest.fixture(scope="module")
def shared(servers: Servers) -> Iterator[Api]:
    """One server for all that leaves no trace."""
    with clone(servers.template("default")) as dsn, running(dsn) as address, Api(address) as api:
        yield api


def ask(address: str, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send these bytes, and read until the server hangs up: the status, the headers and what came behind them."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=PATIENCE) as wire:
        wire.sendall(request)
        answer = b"".join(iter(lambda: wire.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split(" ")[1]), headers, body


def head(target: str = "/jobs", **headers: str) -> bytes:
    lines = {"Host": "127.0.0.1", "Connection": "close"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return (f"GET {target} HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in lines.items()) + "\r\n").encode("latin-1")


def is_clean(status: int, headers: dict[str, str], body: bytes, *, wanted: int | None = None) -> dict[str, Any]:
    """A refusal as it must be, whoever made it."""
    assert 400 <= status < 500, (status, body)
    assert wanted in (None, status), (status, body)
    assert headers["content-type"] == "application/problem+json"
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    members: dict[str, Any] = json.loads(body)
    assert members["status"] == status
    assert members["detail"]
    return members


@pytest.mark.parametrize(
    "host", ["[", "]", "[::1", "[zz]", "[::1]]:80", "a b", "a/b", "a@b", "a?b", "x:y", "x:99999", "\xe9\xaa"]
)
def test_a_host_that_is_none_is_refused(shared: Api, host: str) -> None:
    for path in ("/api/v1/jobs", "/jobs", "/health", "/nowhere", "/static/nothing"):
        assert is_clean(*ask(shared.address, head(path, Host=host)), wanted=400)["code"] == "BadHost"


@pytest.mark.parametrize("target", ["[", "*", "http://[/", "//[", "/%00", "/jobs/%ff", "/jobs?key=%00%ff[", "/jobs/["])
@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_target_that_is_no_path_is_refused_and_a_strange_path_is_answered(shared: Api, target: str, host: str) -> None:
    status, headers, _ = ask(shared.address, head(target, Host=host))

    assert status < 500
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("origin", ["http://[", "http://]", "[", "http://[zz]", "//[", "http://a:b", "\xff", "null"])
def test_an_origin_that_is_none_is_of_another_site(shared: Api, origin: str) -> None:
    for method, target in (("GET", "/api/v1/jobs"), ("POST", "/api/v1/jobs"), ("GET", "/jobs"), ("POST", "/sign-in")):
        request = head(target, Origin=origin, Content_Length="0").replace(b"GET", method.encode(), 1)
        assert is_clean(*ask(shared.address, request), wanted=403)["code"] == "CrossSite"


@pytest.mark.parametrize("name", ["Cookie", "Referer", "Authorization", "Accept", "X-Forwarded-For", "X-Forwarded-Proto"])
@pytest.mark.parametrize("value", ["[", "http://[", "\xff\xfe", "=;,=;", "Bearer [", "a" * 8000])
def test_no_header_breaks_the_server(shared: Api, name: str, value: str) -> None:
    for target in ("/api/v1/jobs", "/jobs", "/sign-in", "/ready"):
        status, headers, _ = ask(shared.address, head(target, **{name: value}))
        assert status < 500
        assert headers["x-content-type-options"] == "nosniff"


def test_a_fault_of_our_own_has_the_headers_of_every_answer(dsn: str) -> None:
    ready = server(dsn, port=0, limits=QUICK)

    @ready.config.app.get("/fault")  # type: ignore[union-attr,untyped-decorator]
    def fault() -> None:
        raise RuntimeError("secret")

    with running(dsn, ready=ready) as address:
        status, headers, body = ask(address, head("/fault"))

    assert (status, headers["x-content-type-options"]) == (500, "nosniff")
    assert json.loads(body)["code"] == "InternalError"
    assert b"secret" not in body


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET / FTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nbad header\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 500_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_like_all_else(shared: Api, request_: bytes) -> None:
    assert is_clean(*ask(shared.address, request_))["code"] == "BadHttp"


def test_a_body_that_turns_into_nonsense_is_refused(shared: Api) -> None:
    request = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"

    is_clean(*ask(shared.address, request), wanted=400)


def test_two_lengths_in_one_request_are_refused(shared: Api) -> None:
    """Who reads the other one, a proxy say, would take the rest for the next request."""
    hidden = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    request = (
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden
    )

    status, headers, body = ask(shared.address, request)

    assert is_clean(status, headers, body, wanted=400)["code"] == "TwoLengths"
    assert headers["connection"] == "close"
    assert b"HTTP/1.1" not in body


@pytest.mark.parametrize("chunked", [False, True])
def test_who_sends_too_much_is_heard_to_the_end_and_then_told(shared: Api, *, chunked: bool) -> None:
    """A connection that is closed on what was not read yet is reset, and the answer may be lost with it."""
    size = 3 * QUICK.body_bytes_max
    place = urlsplit(shared.address)
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size
    piece = b"x" * 65536
    with socket.create_connection((place.hostname, place.port), timeout=PATIENCE) as wire:
        wire.sendall(
            b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + length + b"\r\n\r\n"
        )
        for _ in range(size // len(piece)):
            wire.sendall(b"10000\r\n" + piece + b"\r\n" if chunked else piece)
        if chunked:
            wire.sendall(b"0\r\n\r\n")
        answer = b"".join(iter(lambda: wire.recv(65536), b""))

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"BodyTooLarge" in answer


def test_who_waits_for_leave_to_send_too_much_is_refused_at_once(shared: Api) -> None:
    request = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999\r\nExpect: 100-continue\r\n\r\n"

    assert is_clean(*ask(shared.address, request), wanted=413)["code"] == "BodyTooLarge"


@pytest.mark.parametrize("path", ["/health", "/ready", "/", "/api/v1/jobs", "/api/v1/events", "/openapi.json"])
def test_wherever_get_works_head_does(shared: Api, path: str) -> None:
    asked, answered = shared.http.head(path), None
    if path != "/api/v1/events":
        answered = shared.http.get(path)

    assert asked.status_code == 200
    assert asked.content == b""
    assert answered is None or asked.headers["content-type"] == answered.headers["content-type"]


@pytest.mark.parametrize(
    ("trusted", "peer", "hops", "client"),
    [
        ("", "10.0.0.1", "1.1.1.1", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1", "1.1.1.1", "1.1.1.1"),
        ("10.0.0.1", "10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.2", "1.1.1.1", "10.0.0.2"),
        # What stands left of the first hop that is not ours was written by who asks.
        ("10.0.0.0/8", "10.0.0.1", "6.6.6.6, 1.1.1.1", "1.1.1.1"),
        ("10.0.0.0/8", "10.0.0.1", "6.6.6.6, 1.1.1.1, 10.0.0.9", "1.1.1.1"),
        ("10.0.0.0/8", "10.0.0.1", "10.0.0.8, 10.0.0.9", "10.0.0.8"),
        ("10.0.0.0/8", "10.0.0.1", "1.1.1.1, nonsense", "10.0.0.1"),
        ("10.0.0.0/8,::1", "::1", "1.1.1.1:4711", "1.1.1.1"),
        ("::1", "::1", "[2001:db8::1]:80", "2001:db8::1"),
        ("10.0.0.1", "::ffff:10.0.0.1", "1.1.1.1", "1.1.1.1"),
    ],
)
def test_a_client_is_the_last_hop_that_is_no_proxy_of_ours(trusted: str, peer: str, hops: str, client: str) -> None:
    headers = [(b"x-forwarded-for", hop.encode()) for hop in hops.split(", ") if hop]

    assert Proxies.of(trusted).client(peer, headers) == client


def wrong_keys(address: str, forwarded: str) -> set[int]:
    headers = {"Authorization": f"Bearer {WRONG}", "X-Forwarded-For": forwarded}
    with Api(address) as stranger:
        return until_limited(stranger.get("/jobs", headers=headers).status_code for _ in range(TRIES))


def until_limited(answers: Iterator[int]) -> set[int]:
    found: set[int] = set()
    while 429 not in found and (status := next(answers, None)) is not None:
        found.add(status)
    return found


def test_wrong_keys_through_a_proxy_lock_nobody_else_out(dsn: str, db: Driver) -> None:
    _, good = new_key(db, "read")
    ready = server(dsn, port=0, limits=QUICK, proxies=Proxies.of("127.0.0.1"))

    with running(dsn, ready=ready) as address, Api(address, good) as one:
        found = wrong_keys(address, "6.6.6.6")

        assert found == {401, 429}
        assert one.get("/jobs", headers={"X-Forwarded-For": "7.7.7.7"}).status_code == 200


def test_a_header_does_not_evade_the_limit_on_wrong_keys(dsn: str, db: Driver) -> None:
    new_key(db, "read")

    with running(dsn) as address:
        shown = [head("/api/v1/jobs", Authorization=f"Bearer {WRONG}", X_Forwarded_For=f"6.6.6.{n}") for n in range(TRIES)]
        found = until_limited(ask(address, request)[0] for request in shown)

    assert found == {401, 429}
