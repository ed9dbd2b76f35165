"""Every address: the pages, and the API with /healthz and /readyz."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [path("", include("apps.api.urls")), path("", include("apps.pages.urls"))]

handler400 = "apps.pages.errors.bad_request"
handler403 = "apps.pages.errors.forbidden"
handler404 = "apps.pages.errors.not_found"
handler500 = "apps.pages.errors.server_error"
