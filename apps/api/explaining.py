"""What any output means: the readers of the product, for a text that somebody has at hand."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router

from apps.api.schemas import ExplainBody, Explained
from apps.diagnosis import explaining
from apps.people.access import allow

router = Router(tags=["diagnosis"])


@router.post("explain", response=Explained)
@allow("view")
def explain_output(request: HttpRequest, body: ExplainBody) -> Explained:
    """Recognise the text, read it, and say what it means. Nothing is stored."""
    found = explaining.explain_all(body.text.encode("utf-8", "replace"))
    return Explained(readings=[explaining.as_json(reading) for reading in found])
