from django.apps import AppConfig


class RecipesConfig(AppConfig):
    name = "apps.recipes"
    label = "recipes"
    default_auto_field = "django.db.models.BigAutoField"
