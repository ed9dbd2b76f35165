"""Where a version came from, what of it waits for a decision, and since when it is used and therefore fixed."""

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import Min


def mark_used(apps: Apps, _: BaseDatabaseSchemaEditor) -> None:
    """Versions that deployments were made from before this was kept."""
    used = apps.get_model("deployments", "Deployment").objects.exclude(recipe_version=None)
    for version, first in used.values_list("recipe_version").annotate(first=Min("created_at")).order_by():
        apps.get_model("recipes", "RecipeVersion").objects.filter(pk=version).update(used_at=first)


class Migration(migrations.Migration):
    dependencies = [("recipes", "0001_initial"), ("deployments", "0001_initial")]

    operations = [
        migrations.AddField("recipeversion", "changed_at", models.DateTimeField(null=True)),
        migrations.AddField("recipeversion", "changed_by", models.CharField(blank=True, default="", max_length=80)),
        migrations.AddField("recipeversion", "extra", models.JSONField(blank=True, default=dict)),
        migrations.AddField("recipeversion", "family", models.CharField(blank=True, default="", max_length=20)),
        migrations.AddField("recipeversion", "notes", models.JSONField(blank=True, default=list)),
        migrations.AddField("recipeversion", "quarantine", models.JSONField(blank=True, default=list)),
        migrations.AddField("recipeversion", "source", models.TextField(blank=True, default="")),
        migrations.AddField("recipeversion", "source_sha256", models.CharField(blank=True, default="", max_length=64)),
        migrations.AddField("recipeversion", "used_at", models.DateTimeField(null=True)),
        migrations.RunPython(mark_used, migrations.RunPython.noop),
    ]
