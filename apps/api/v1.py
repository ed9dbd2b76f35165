"""/api/v1: all its operations under one object, and their OpenAPI description."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern, URLResolver, path
from ninja import NinjaAPI
from ninja.openapi.schema import OpenAPISchema
from ninja.operation import Operation
from ninja.router import BoundRouter

from apps.api import (
    audit,
    compare,
    credentials,
    deployments,
    explaining,
    measure,
    model_folders,
    nodes,
    problems,
    provision,
    recipes,
    report,
    runs,
    triage,
)
from apps.api.bodies import StrictParser
from apps.api.schemas import Problem
from apps.people.access import allow

ABOUT = f"""Nodes, recipes, deployments, runs, the audit trail, and what an output means; people, tokens, secrets and the
trail's export are on the pages only. Send `Authorization: Bearer TOKEN`; `{settings.COMMAND} token NAME --role ROLE`
prints one. Errors are `application/problem+json`. Times are ISO 8601 in UTC, sizes bytes, durations seconds; unknown is
null. Lists give `next`: pass it as `after` (for the audit trail as `before`) to get more; it is null at the end."""
FAILURES = {
    "400": "The body is no JSON",
    "401": "No token, or one that is unknown, revoked or expired",
    "403": "The role does not allow this",
    "404": "No such object",
    "409": "In conflict with the state of things",
    "422": "A field is wrong",
    "503": "No worker is running",
}


@allow("view")
def start(request: HttpRequest) -> JsonResponse:
    """Where to find the rest."""
    lists = ("nodes", "credentials", "recipes", "deployments", "runs", "audit")
    return JsonResponse({"openapi": "/api/v1/openapi.json", **{name: f"/api/v1/{name}" for name in lists}})


def reading_only(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """For the description, whose view takes any method."""

    def answer(request: HttpRequest, **words: Any) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return problems.method_not_allowed(["GET", "HEAD"])
        return view(request, **words)

    return answer


class Api(NinjaAPI):
    """django-ninja with problem+json for 405 and in the description, and a start page that says what it asks for."""

    def _get_bound_routers(self) -> list[BoundRouter]:
        fresh = self._bound_routers_cache is None
        bound = super()._get_bound_routers()
        for router in bound if fresh else []:
            for view in router.path_operations.values():
                methods = [method for operation in view.operations for method in operation.methods]
                setattr(view, "_not_allowed", partial(problems.method_not_allowed, methods))  # noqa: B010 - on one object
        return bound

    def _get_urls(self) -> list[URLResolver | URLPattern]:
        """One address, one pattern: ninja makes one for each operation, all with the same view."""
        patterns = {str(one.pattern): one for one in reversed(super()._get_urls()[:-1])}
        return [*reversed(patterns.values()), path("", start, name="api-root")]

    def get_openapi_operation_id(self, operation: Operation) -> str:
        return operation.view_func.__name__

    def get_openapi_schema(
        self, *, path_prefix: str | None = None, path_params: dict[str, Any] | None = None
    ) -> OpenAPISchema:
        schema = super().get_openapi_schema(path_prefix=path_prefix, path_params=path_params)
        schema["components"]["schemas"]["Problem"] = Problem.model_json_schema()
        schema["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        content = {problems.CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        for operations in schema["paths"].values():
            for operation in operations.values():
                for status, words in FAILURES.items():
                    operation["responses"].setdefault(status, {"description": words, "content": content})
        return schema


def _made() -> Api:
    made = Api(
        title="sparkweb",
        version="1",
        description=ABOUT,
        urls_namespace="api-v1",
        docs_decorator=reading_only,
        docs_url=None,  # its page needs scripts from elsewhere, which our Content-Security-Policy refuses
        parser=StrictParser(),
        openapi_extra={"security": [{"bearer": []}]},
    )
    problems.attach(made)
    rooms = (
        nodes,
        provision,
        model_folders,
        credentials,
        recipes,
        deployments,
        triage,
        compare,
        measure,
        report,
        runs,
        audit,
        explaining,
    )
    for room in rooms:
        made.add_router("", room.router)
    return made


api = _made()
