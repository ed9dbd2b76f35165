"""A browser's way in over TLS: sign-in by link, then the socket, each also from origins that are not ours."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import websockets


@dataclass(frozen=True)
class Site:
    """`origin` as people open it; `certificate` is the only one that is trusted; `place` is where it really listens."""

    origin: str
    certificate: Path | None = None

    @property
    def context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=str(self.certificate)) if self.certificate else None

    def browser(self) -> httpx.Client:
        return httpx.Client(base_url=self.origin, verify=self.context or False, trust_env=False, timeout=20)


def csrf_of(page: str) -> str:
    found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert found, page[:2000]
    return found.group(1)


def sign_in(site: Site, path: str, *, origin: str | None) -> tuple[httpx.Response, httpx.Client]:
    """Open a sign-in link and press its button, as a page of `origin` would."""
    browser = site.browser()
    page = browser.get(path)
    assert page.status_code == 200, page.text
    said = {"Origin": origin} if origin else {}
    answer = browser.post(
        path, data={"csrfmiddlewaretoken": csrf_of(page.text)}, headers={**said, "Referer": site.origin + path}
    )
    return answer, browser


def foreign(origin: str) -> list[str]:
    """Origins that look like ours and are not."""
    parts = urlsplit(origin)
    host, port = parts.hostname or "", parts.port or {"https": 443, "http": 80}[parts.scheme]
    other = "http" if parts.scheme == "https" else "https"
    return [
        f"{other}://{parts.netloc}",
        f"{parts.scheme}://{host}:{port + 1}",
        f"{parts.scheme}://{host}.evil.example:{port}",
        f"{parts.scheme}://evil.example",
        f"{origin}/",
        f"{origin}@evil.example",
        "null",
    ]


def socket_answer(site: Site, browser: httpx.Client, *, origin: str | None) -> str:
    """`pong`, or the HTTP status with which the handshake was refused."""
    cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in browser.cookies.jar)

    async def act() -> str:
        address = site.origin.replace("http", "ws", 1) + "/ws/live"
        try:
            async with websockets.connect(
                address,
                ssl=site.context,
                additional_headers={"Cookie": cookies, **({"Origin": origin} if origin else {})},
                proxy=None,
                open_timeout=20,
            ) as socket:
                await socket.send(json.dumps({"op": "ping"}))
                async with asyncio.timeout(20):
                    while True:
                        said = json.loads(await socket.recv())
                        if said["type"] != "changed":
                            return str(said["type"])
        except websockets.InvalidStatus as refused:
            return str(refused.response.status_code)

    return asyncio.run(act())


def check_the_way_in(site: Site, links: list[str], others: list[str] | None = None) -> httpx.Client:
    """Everything above, in order; `links` are two unused sign-in links. Returns the signed-in browser."""
    first, second = links
    for origin in others if others is not None else foreign(site.origin):
        answer, _ = sign_in(site, first, origin=origin)
        assert answer.status_code == 403, (origin, answer.status_code)
    answer, browser = sign_in(site, first, origin=site.origin)
    assert answer.status_code in (302, 303), answer.text
    assert browser.get("/").status_code == 200
    answer, _ = sign_in(site, second, origin=None)  # older browsers send the Referer only
    assert answer.status_code in (302, 303)
    assert socket_answer(site, browser, origin=site.origin) == "pong"
    for origin in [*(others if others is not None else foreign(site.origin)), None]:
        assert socket_answer(site, browser, origin=origin) == "403", origin
    return browser
