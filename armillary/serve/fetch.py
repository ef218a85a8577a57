"""Pictures and clips from URLs: off unless hosts are named, and only what was checked is connected to.

A name is resolved once; every address found must be one of the public Internet, and the connection goes to
the very address that was checked, so a second answer of the name server changes nothing. A redirect starts
from the beginning, host list included. No header of the request travels along, no cookie, no token.
"""

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from armillary.errors import BadRequest

PORTS = {"http": 80, "https": 443}
HOPS = 4
GLOBAL_6 = ipaddress.ip_network("2000::/3")  # what is handed out of IPv6 (RFC 4291)
WRAPPED_6 = ipaddress.ip_network("64:ff9b::/96")  # IPv4 behind a translator (RFC 6052)
SPECIAL_4 = [ipaddress.ip_network(net) for net in ("192.0.0.0/24", "192.88.99.0/24")]  # RFC 6890
CHUNK = 65536

Resolve = Callable[[str, int], list[str]]
Dial = Callable[[str, int, float], socket.socket]


def resolve(host: str, port: int) -> list[str]:
    """Every address of a name."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(where[4][0]) for where in found]


def dial(address: str, port: int, timeout_s: float) -> socket.socket:
    """A connection to an address, not to a name."""
    return socket.create_connection((address, port), timeout=timeout_s)


def is_global(address: str) -> bool:
    """Does the address belong to the public Internet? Addresses that wrap another are judged by that one."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo or (None, None))[1]
        if inner is not None:
            return is_global(str(inner))
        if ip in WRAPPED_6:
            return is_global(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
        return ip in GLOBAL_6 and ip.is_global
    return ip.is_global and not ip.is_multicast and not any(ip in net for net in SPECIAL_4)


@dataclass(frozen=True)
class Fetcher:
    """Reads URLs of some hosts, within limits. `resolve` and `dial` are the network."""

    hosts: tuple[str, ...]
    max_bytes: int
    seconds: float
    resolve: Resolve = resolve
    dial: Dial = dial

    def fetch(self, url: str, field: str) -> bytes:
        """What the URL holds. Raises BadRequest naming `field`."""
        deadline = time.monotonic() + self.seconds
        for _ in range(HOPS):
            try:
                found = self._one(url, field, deadline)
            except (OSError, http.client.HTTPException, UnicodeError) as error:
                raise BadRequest(field, url, f"cannot be fetched: {error}") from None
            if isinstance(found, bytes):
                return found
            url = found
        raise BadRequest(field, url, f"redirects more than {HOPS} times")

    def _one(self, url: str, field: str, deadline: float) -> bytes | str:
        """The body, or where it is said to be."""
        parts, port = self._permitted(url, field)
        host = parts.hostname or ""
        addresses = self.resolve(host, port)
        if not addresses or not all(is_global(address) for address in addresses):
            raise BadRequest(field, url, f"{host} is no address of the public Internet")
        connection, sock = http.client.HTTPConnection(host, port), self._dialled(addresses, port, deadline)
        try:
            sock.settimeout(_left(deadline))
            connection.sock = sock = _secured(sock, host) if parts.scheme == "https" else sock
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"Accept": "image/*, video/*", "Connection": "close"})
            with connection.getresponse() as answer:
                if answer.status in (301, 302, 303, 307, 308):
                    return _target(url, answer.getheader("Location", ""), field)
                if answer.status != 200:
                    raise BadRequest(field, url, f"the host answers {answer.status}")
                return self._read(answer, sock, url, field, deadline)
        finally:
            connection.close()
            sock.close()

    def _dialled(self, addresses: list[str], port: int, deadline: float) -> socket.socket:
        """A connection to the first address that takes one; each has a fair share of the time."""
        for i, address in enumerate(addresses[:-1]):
            try:
                return self.dial(address, port, _left(deadline) / (len(addresses) - i))
            except OSError:
                continue
        return self.dial(addresses[-1], port, _left(deadline))

    def _permitted(self, url: str, field: str) -> tuple[SplitResult, int]:
        """The URL's parts and port, if it may be asked at all."""
        try:
            parts = urlsplit(url)
            port = parts.port or PORTS.get(parts.scheme, 0)
        except ValueError as error:
            raise BadRequest(field, url, f"is no URL: {error}") from None
        if parts.scheme not in PORTS or parts.username is not None or not url.isascii():
            raise BadRequest(field, url, "http and https URLs are fetched, in ASCII, without a user name")
        host = (parts.hostname or "").rstrip(".")
        plain = port == PORTS[parts.scheme] and host in self.hosts
        if not plain and f"{host}:{port}" not in self.hosts:
            allowed = ", ".join(self.hosts) or "none"
            raise BadRequest(field, url, f"hosts that this server fetches from: {allowed}")
        return parts, port

    def _read(
        self,
        answer: http.client.HTTPResponse,
        sock: socket.socket,
        url: str,
        field: str,
        deadline: float,
    ) -> bytes:
        """The body, counted while it comes; one that ends before its announced length is none."""
        body, due = bytearray(), answer.length
        while len(body) != due:
            sock.settimeout(_left(deadline))
            chunk = answer.read1(CHUNK)
            if not chunk and due is not None:
                raise BadRequest(field, url, f"breaks off after {len(body)} of {due} bytes")
            if not chunk:
                break
            body += chunk
            if len(body) > self.max_bytes:
                raise BadRequest(field, url, f"is larger than {self.max_bytes} bytes")
        return bytes(body)


def _target(url: str, location: str, field: str) -> str:
    """Where a redirect leads."""
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise BadRequest(field, url, f"redirects to what is no URL: {error}") from None


def _left(deadline: float) -> float:
    """Seconds until then. Raises TimeoutError when none are left."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("it takes too long")
    return left


def _secured(sock: socket.socket, host: str) -> socket.socket:
    return ssl.create_default_context().wrap_socket(sock, server_hostname=host)
