"""The addresses of sockets."""

from __future__ import annotations

from django.urls import path

from apps.live.consumer import PageConsumer

websocket_urlpatterns = [path("ws/live", PageConsumer.as_asgi())]
