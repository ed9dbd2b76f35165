"""What the ASGI server runs: HTTP by Django, one kind of socket, opened only from our own pages (exact Origin)."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sparkweb.settings")
http = get_asgi_application()

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402 - models are ready only now
from django.conf import settings  # noqa: E402

import sparkweb.celery  # noqa: E402, F401 - not first when somebody waits for an answer
from apps.live.routing import ExactOrigin, websocket_urlpatterns  # noqa: E402

# Who opens a socket is found by the same function as for pages (apps.people.sessions), not by Channels' own middleware.
application = ProtocolTypeRouter(
    {"http": http, "websocket": ExactOrigin(URLRouter(websocket_urlpatterns), settings.ORIGINS)}
)
