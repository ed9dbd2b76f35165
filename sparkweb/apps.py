from django.apps import AppConfig


class SparkwebConfig(AppConfig):
    name = "sparkweb"

    def ready(self) -> None:
        from sparkweb import checks  # noqa: F401 - registers itself
        from sparkweb.celery import app

        app.set_default()  # tasks that any process sends go to our broker
