"""Makes the management command `lab` known to Django; the room has no models."""

from __future__ import annotations

from django.apps import AppConfig


class LabConfig(AppConfig):
    name = "apps.lab"
    label = "lab"
    verbose_name = "Pretend Sparks"
