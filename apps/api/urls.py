"""Addresses of the API."""

from __future__ import annotations

from apps.api import health

urlpatterns = [*health.urlpatterns]
