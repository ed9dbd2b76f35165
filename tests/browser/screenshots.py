"""Every page, desktop and phone, light and dark, into var/screenshots/PAGE-SIZE-SCHEME.png."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent.parent / "var" / "screenshots"


def pages(ids: dict[str, Any]) -> dict[str, str]:
    """Name -> address, of what the seeded story shows."""
    return {
        "fleet": "/",
        "deployments": "/deployments",
        "deployment-new": "/deployments/new",
        "deployment-serving": f"/deployments/{ids['serving']}",
        "deployment-lost": f"/deployments/{ids['lost']}",
        "plan": f"/deployments/{ids['draft']}/plan?story=launch",
        "relaunch": f"/deployments/{ids['lost']}/plan?story=relaunch",
        "triage": "/triage",
        "run": f"/runs/{ids['loading']}",
        "run-failed": f"/runs/{ids['failed_run']}",
        "nodes": "/nodes",
        "previous": "/nodes/previous?node=spark-1a32&node=spark-5be3",
        "node": f"/nodes/{ids['head']}",
        "node-away": f"/nodes/{ids['away']}",
        "node-add": "/nodes/add",
        "cluster": "/cluster",
        "explain": "/explain",
        "recipes": "/recipes",
        "recipe": "/recipes/qwen3.5-122b-a10b-fp8",
        "recipe-imported": "/recipes/everything-that-needs-trust",
        "recipe-edit": "/recipes/chat-beside-embeddings/edit",
        "recipe-diff": "/recipes/chat-beside-embeddings/diff",
        "recipe-import": "/recipes/import",
        "audit": "/audit",
        "settings": "/settings",
        "benchmarks": "/benchmarks",
        "benchmark-import": "/benchmarks/import",
        "benchmark-by-hand": "/benchmarks/by-hand",
        "report": "/report",
        "report-deployment": f"/deployments/{ids['lost']}/report",
        "credentials": "/settings/credentials",
        "secrets": "/settings/secrets",
        "people": "/settings/people",
        "patterns": "/patterns",
        "not-found": "/nothing/here",
    }


def take(window: Any, name: str, path: str, size: str) -> dict[str, Any]:
    """Open the page, wait until it is drawn, write both pictures. Returns what was measured: width beyond the window, errors."""
    page = window.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda problem: troubles.append(str(problem)))
    page.on(
        "console", lambda said: troubles.append(said.text) if said.type == "error" and "404" not in said.text else None
    )
    page.goto(path, wait_until="load")
    page.wait_for_timeout(350)
    if "/runs/" in path:
        page.wait_for_selector(".line", timeout=10000)
    FOLDER.mkdir(parents=True, exist_ok=True)
    beyond = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    if "/runs/" not in path or size == "phone":  # the log fills the window, however high that is
        width = page.viewport_size["width"]
        page.set_viewport_size({"width": width, "height": page.evaluate("document.documentElement.scrollHeight")})
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=FOLDER / f"{name}-{size}-{scheme}.png")
    page.close()
    return {"beyond": beyond, "troubles": troubles}
