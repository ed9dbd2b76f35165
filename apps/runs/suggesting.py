"""Which recipe a new deployment begins with, before anybody has chosen one."""

from __future__ import annotations

from apps.deployments.models import Deployment
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.recipes.models import Recipe
from apps.recipes.services import current_version

MOST_NODES = 64


def suggested() -> Recipe | None:
    """The one used last; else the first of the shipped ones whose model lies on as many ready nodes as it wants; else the first
    shipped one that wants no more nodes than are ready, and names a model; else any."""
    used = Deployment.objects.filter(recipe_version__recipe__archived_at=None).exclude(recipe_version=None)
    last = used.order_by("-pk").select_related("recipe_version__recipe").first()
    if last is not None and last.recipe_version is not None:
        return last.recipe_version.recipe
    shipped = list(Recipe.objects.filter(archived_at=None, shipped=True).order_by("slug"))
    nodes = list(Node.objects.filter(state=Node.State.READY)[:MOST_NODES])
    there = [_models(node) for node in nodes]
    second = None
    for recipe in shipped:
        version = current_version(recipe)
        path = str(version.body.get("model_path") or "").rstrip("/")
        folder = path.rpartition("/")[0] if path.lower().endswith(".gguf") else path
        if path and sum(folder in models for models in there) >= version.world_size:
            return recipe
        if path and second is None and version.world_size <= max(1, len(nodes)):
            second = recipe
    return second or Recipe.objects.filter(archived_at=None).first()


def _models(node: Node) -> set[str]:
    """Paths of the complete models on a node, as its newest facts say."""
    found = inventory.part_of_sheet(node, "models").models or ()
    return {model.path.rstrip("/") for model in found if model.complete is not False}
