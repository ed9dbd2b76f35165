"""The addresses of all pages."""

from __future__ import annotations

from apps.pages import (
    audit,
    cluster,
    credentials,
    deployments,
    explain,
    fitting,
    fleet,
    models,
    nodes,
    patterns,
    people,
    previous,
    provision,
    recipe_editing,
    recipe_import,
    recipes,
    runs,
    settings,
    signin,
    triage,
)

urlpatterns = [
    *fleet.urlpatterns,
    *fitting.urlpatterns,
    *deployments.urlpatterns,
    *triage.urlpatterns,
    *nodes.urlpatterns,
    *provision.urlpatterns,
    *models.urlpatterns,
    *previous.urlpatterns,
    *runs.urlpatterns,
    *recipe_editing.urlpatterns,
    *recipe_import.urlpatterns,
    *recipes.urlpatterns,
    *settings.urlpatterns,
    *credentials.urlpatterns,
    *patterns.urlpatterns,
    *signin.urlpatterns,
    *people.urlpatterns,
    *audit.urlpatterns,
    *explain.urlpatterns,
    *cluster.urlpatterns,
]
