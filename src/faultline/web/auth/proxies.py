"""Trust `X-Forwarded-For` and `X-Forwarded-Proto` from listed proxies only.

A proxy appends the address of its client. So the client is the rightmost hop that is not a listed proxy: the client itself
may have written everything to the left of it.
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
#: Some proxies add the port.
_HOP = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::\d+)?|([0-9.]+):\d+|(\S+)")
#: A client with one address of an IPv6 network has all of them.
_NETWORK_BITS = 64


@dataclass(frozen=True, slots=True)
class Proxies:
    """The trusted proxies, as addresses and networks. Default: none."""

    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()

    @classmethod
    def of(cls, text: str | None) -> Proxies:
        """Addresses and networks, separated by commas: `10.0.0.7, 172.16.0.0/12, ::1`."""
        words = [word.strip() for word in (text or "").split(",") if word.strip()]
        try:
            return cls(tuple(map(ipaddress.ip_network, words)))
        except ValueError as error:
            raise ConfigError(
                f"invalid trusted proxies {text!r}: {error}; give addresses and networks, comma-separated, as in"
                " 10.0.0.7,172.16.0.0/12"
            ) from error

    def client(self, peer: str, headers: Headers) -> str:
        """The address of the client."""
        hops = [hop for name, value in headers if name == b"x-forwarded-for" for hop in value.decode("latin-1").split(",")]
        found = _address(peer)
        while found is not None and self._trusts(found) and hops:
            before = _address(hops.pop())
            if before is None:
                break  # not an address: keep the last known one
            found = before
        return peer if found is None else str(found)

    def seen(self, scope: Scope) -> Scope:
        """The request as if it had come without proxies."""
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
    """The name under which a client's attempts are counted."""
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
    # An IPv4 address on a socket for both kinds.
    return getattr(address, "ipv4_mapped", None) or address
