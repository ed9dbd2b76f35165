"""Where the site is opened and over what: exact origins, TLS or, beyond loopback, plain HTTP only when somebody said so."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from sparkweb import env

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Reach:
    """`tls`: this server speaks TLS itself; `given` says with which files, None means one that it makes in VAR/tls."""

    host: str
    port: int
    origins: tuple[str, ...]
    tls: bool
    given: tuple[Path, Path] | None
    plain_http: bool  # allowed beyond loopback
    proxies: tuple[str, ...] = ()  # addresses and networks whose X-Forwarded-For is believed

    @property
    def https(self) -> bool:
        return all(origin.startswith("https://") for origin in self.origins)

    @property
    def open_words(self) -> bool:
        """Whether people open it over plain HTTP from other machines. What a proxy in front does is in the origins."""
        return not all(origin.startswith("https://") or is_loopback(_host(origin)) for origin in self.origins)

    @property
    def hosts(self) -> list[str]:
        return sorted({_host(origin) for origin in self.origins})


def _host(origin: str) -> str:
    return urlsplit(origin).hostname or ""


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def from_environment() -> Reach:
    """HOST, PORT, ORIGINS, PROXIES, TLS_CERTIFICATE, TLS_KEY, TLS_SELF_SIGNED, ALLOW_PLAIN_HTTP.

    Raises ImproperlyConfigured.
    """
    host, port = env.text("HOST") or "127.0.0.1", env.port("PORT", 8000)
    given, self_signed = _given_files(), env.flag("TLS_SELF_SIGNED")
    if given and self_signed:
        raise ImproperlyConfigured("TLS_SELF_SIGNED=1 and TLS_CERTIFICATE: choose one of the two")
    tls = bool(given) or self_signed
    scheme = "https" if tls else "http"
    origins = [exact(origin) for origin in env.words("ORIGINS")] or [
        f"{scheme}://{name}{_port_words(scheme, port)}" for name in ("127.0.0.1", "localhost")
    ]
    proxies = tuple(proxy(words) for words in env.words("PROXIES"))
    reach = Reach(host, port, tuple(origins), tls, given, env.flag("ALLOW_PLAIN_HTTP"), proxies)
    _refuse_mixture(reach.origins, tls=tls)
    _refuse_open_words(reach)
    return reach


def _port_words(scheme: str, port: int) -> str:
    return "" if DEFAULT_PORTS[scheme] == port else f":{port}"


def _given_files() -> tuple[Path, Path] | None:
    certificate, key = env.text("TLS_CERTIFICATE"), env.text("TLS_KEY")
    if bool(certificate) != bool(key):
        missing = "TLS_KEY" if certificate else "TLS_CERTIFICATE"
        raise ImproperlyConfigured(f"{missing} is missing: a certificate and its key are given together")
    return (Path(certificate), Path(key)) if certificate else None


def exact(origin: str) -> str:
    """`origin` when it is written as a browser sends it. Raises ImproperlyConfigured with the form that it should have."""
    try:
        parts = urlsplit(origin)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        parts, port, host = urlsplit(""), None, ""
    if parts.scheme not in DEFAULT_PORTS or not host or "*" in host or parts.username is not None:
        raise ImproperlyConfigured(
            f"ORIGINS: {origin!r} is no origin; it looks like https://sparkweb.example or http://127.0.0.1:8000"
        )
    name = f"[{host}]" if ":" in host else host
    wanted = f"{parts.scheme}://{name}" + ("" if port in (None, DEFAULT_PORTS[parts.scheme]) else f":{port}")
    if origin != wanted:
        raise ImproperlyConfigured(
            f"ORIGINS: browsers compare to the letter; write {wanted} instead of {origin} "
            "(lower case, no path, no slash at the end, no port that the scheme implies)"
        )
    return origin


def proxy(words: str) -> str:
    """`words` when they are an address, or a network that is not everybody. Raises ImproperlyConfigured."""
    try:
        network = ipaddress.ip_network(words)
    except ValueError as problem:
        raise ImproperlyConfigured(
            f"PROXIES: {words!r} is neither an address nor a network ({problem}); it looks like 127.0.0.1 or 172.20.0.0/16"
        ) from None
    if network.prefixlen == 0:
        raise ImproperlyConfigured(
            f"PROXIES: {words} is everybody, and then anybody could choose the address he comes from"
        )
    return words


def _refuse_mixture(origins: Sequence[str], *, tls: bool) -> None:
    secure = [origin.startswith("https://") for origin in origins]
    if any(secure) != all(secure):
        raise ImproperlyConfigured(
            f"ORIGINS={','.join(origins)}: cookies are either for https or for http; give origins of one kind"
        )
    if tls and not all(secure):
        raise ImproperlyConfigured(f"ORIGINS={','.join(origins)}: this server speaks TLS, so each begins with https://")


def _refuse_open_words(reach: Reach) -> None:
    """Passwords and logs must not cross a network readable by others unless somebody decided that."""
    if reach.tls or reach.plain_http:
        return
    remedy = (
        "Give TLS_CERTIFICATE and TLS_KEY, or TLS_SELF_SIGNED=1 for a certificate made here. "
        "ALLOW_PLAIN_HTTP=1 allows it in the open, and every page says so."
    )
    if not is_loopback(reach.host):
        raise ImproperlyConfigured(f"HOST={reach.host} is beyond loopback and this server has no TLS. {remedy}")
    open_ones = [o for o in reach.origins if o.startswith("http://") and not is_loopback(_host(o))]
    if open_ones:
        raise ImproperlyConfigured(f"ORIGINS: {open_ones[0]} is plain HTTP beyond loopback. {remedy}")
