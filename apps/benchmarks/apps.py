from django.apps import AppConfig


class BenchmarksConfig(AppConfig):
    name = "apps.benchmarks"
    label = "benchmarks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from apps.benchmarks import measuring
        from apps.runs.settling import AT_THE_END

        AT_THE_END["benchmark"] = measuring.keep
