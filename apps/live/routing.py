"""The address of the socket, and the guard before it: our own pages only, by the exact Origin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from channels.security.websocket import WebsocketDenier
from django.urls import path, re_path

from apps.live.consumer import PageConsumer

websocket_urlpatterns = [
    path("ws/live", PageConsumer.as_asgi()),
    re_path("", WebsocketDenier.as_asgi()),  # any other address is refused, without a traceback in the log
]

Application = Callable[[dict[str, Any], Callable[..., Any], Callable[..., Any]], Awaitable[None]]


class ExactOrigin:
    """Lets a socket through whose Origin is one of `origins` to the letter: scheme, host and port.

    A browser sends it always and pages can't forge it. Another program on the same host but another port is another origin.
    """

    def __init__(self, application: Application, origins: Sequence[str]) -> None:
        self.application = application
        self.origins = frozenset(origin.rstrip("/").lower().encode() for origin in origins)

    async def __call__(self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        said = [value.lower() for name, value in scope.get("headers", []) if name.lower() == b"origin"]
        allowed = len(said) == 1 and said[0] in self.origins
        await (self.application if allowed else WebsocketDenier())(scope, receive, send)
