from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import AppConfig

from apps.runs.at_the_end import AT_THE_END

if TYPE_CHECKING:
    from apps.runs.models import Run


class BenchmarksConfig(AppConfig):
    name = "apps.benchmarks"
    label = "benchmarks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        AT_THE_END["benchmark"] = _keep


def _keep(run: Run) -> None:
    from apps.benchmarks import measuring  # loads what a start does not need

    measuring.keep(run)
