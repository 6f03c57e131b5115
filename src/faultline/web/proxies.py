"""Whose word about a client is taken: `X-Forwarded-For` and `X-Forwarded-Proto` count from listed proxies, from nobody else.

A proxy appends the address that it was asked from. So the client is the rightmost hop that is no proxy of ours: all to the
left of it was written by whoever asks, and would let them choose who they are.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Scope

    Headers = Sequence[tuple[bytes, bytes]]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: Some proxies write the port as well.
_HOP = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::\d+)?|([0-9.]+):\d+|(\S+)")
#: Who has one address of an IPv6 network has all of them.
_NETWORK_BITS = 64


@dataclass(frozen=True, slots=True)
class Proxies:
    """The addresses and networks that are trusted to say who asked them. None unless they are named."""

    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()

    @classmethod
    def of(cls, text: str | None) -> Proxies:
        """Addresses and networks between commas: `10.0.0.7, 172.16.0.0/12, ::1`."""
        words = [word.strip() for word in (text or "").split(",") if word.strip()]
        try:
            return cls(tuple(map(ipaddress.ip_network, words)))
        except ValueError as error:
            raise ConfigError(
                f"invalid trusted proxies {text!r}: {error}; give addresses and networks, comma-separated, as in"
                " 10.0.0.7,172.16.0.0/12"
            ) from error

    def client(self, peer: str, headers: Headers) -> str:
        """The address of who asks."""
        hops = [hop for name, value in headers if name == b"x-forwarded-for" for hop in value.decode("latin-1").split(",")]
        found = _address(peer)
        while found is not None and self._trusts(found) and hops:
            before = _address(hops.pop())
            if before is None:
                break  # no address: the last one that we know of stands
            found = before
        return peer if found is None else str(found)

    def seen(self, scope: Scope) -> Scope:
        """A request as it would be if it had come without proxies."""
        peer = scope["client"]
        address = None if peer is None else _address(peer[0])
        if address is None or not self._trusts(address):
            return scope
        said = {value for name, value in scope["headers"] if name == b"x-forwarded-proto"}
        scheme = "https" if said == {b"https"} else "http" if said == {b"http"} else scope["scheme"]
        return {**scope, "client": (self.client(peer[0], scope["headers"]), peer[1]), "scheme": scheme}

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def limited_as(client: str) -> str:
    """Under which name a client's tries are counted."""
    address = _address(client)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
    return client


def _address(text: str) -> Address | None:
    found = _HOP.fullmatch(text.strip())
    try:
        address = ipaddress.ip_address(next(filter(None, found.groups()))) if found else None
    except ValueError:
        return None
    # How a socket for both kinds shows the older one.
    return getattr(address, "ipv4_mapped", None) or address
