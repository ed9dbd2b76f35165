"""Addresses of the API."""

from __future__ import annotations

from django.urls import path

from apps.api import health
from apps.api.v1 import api

urlpatterns = [*health.urlpatterns, path("api/v1/", api.urls)]
