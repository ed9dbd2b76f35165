from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0002_fit_samples"),
    ]

    operations = [
        migrations.AddField(model_name="deployment", name="found", field=models.JSONField(default=list)),
        migrations.AddField(model_name="deployment", name="taken_over_at", field=models.DateTimeField(null=True)),
        migrations.AddField(
            model_name="rank", name="service", field=models.CharField(blank=True, default="", max_length=31)
        ),
        migrations.AddField(
            model_name="rank", name="unit", field=models.CharField(blank=True, default="", max_length=255)
        ),
    ]
