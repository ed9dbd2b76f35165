from django.apps import AppConfig


class WatchConfig(AppConfig):
    name = "apps.watch"
    label = "watch"
    default_auto_field = "django.db.models.BigAutoField"
