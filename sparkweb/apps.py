from django.apps import AppConfig


class SparkwebConfig(AppConfig):
    name = "sparkweb"

    def ready(self) -> None:
        from sparkweb import checks  # noqa: F401 - registers itself
