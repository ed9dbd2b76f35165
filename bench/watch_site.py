"""The worker of benchmark `watch`: the product's own cycle with its database, in a process of its own.

    python -m bench.watch_site     VAR and REDIS_URL in the environment; one JSON object a line in, one out

The first line is {"private_key", "nodes": [{"name", "port", "user", "host_keys"}], "containers": […], "port"}: nodes, and a deployment
for every two of them whose ranks are these containers. Each line after it, {"do": "cycle"}, plays one cycle as beat would.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import django

Told = dict[str, Any]


def main() -> None:
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    site = Site(json.loads(sys.stdin.readline()))
    print(json.dumps({"rss_mib": _rss_mib()}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(getattr(site, asked.pop("do"))(**asked)), flush=True)


class Site:
    def __init__(self, setup: Told) -> None:
        from apps.audit.actor import Actor
        from apps.inventory import services as inventory
        from apps.inventory.models import HostKey, Node

        key = inventory.make_credential(
            Actor("person", 1, "bench", "admin"), name="key", private_key=setup["private_key"]
        )
        self.nodes = []
        for one in setup["nodes"]:
            node = Node.objects.create(
                name=one["name"], address="127.0.0.1", port=one["port"], user=one["user"], credential=key, state="ready"
            )
            for kind, base64 in one["host_keys"]:
                HostKey.objects.create(node=node, type=kind, base64=base64, sha256=f"of {kind}", state="pinned")
            self.nodes.append(node)
        for place in range(0, len(self.nodes) - 1, 2):
            self._deploy(self.nodes[place : place + 2], setup["containers"], setup["port"])

    def _deploy(self, nodes: list[Any], containers: list[str], port: int) -> None:
        """As after a good launch."""
        from apps.deployments.models import Deployment, Rank, Revision
        from apps.plan.spec import Spec
        from apps.runs.models import Run

        name = f"model-{nodes[0].pk}"
        spec = Spec(name, "a/model", "", tuple(node.name for node in nodes), cluster="native", image="i", port=port)
        deployment = Deployment.objects.create(name=name, state="serving")
        revision = Revision.objects.create(deployment=deployment, number=1, body=spec.to_json())
        run = Run.objects.create(
            code=name[:12], story="launch", deployment=deployment, revision=revision, state="succeeded",
            actor_kind="person", actor_name="bench", actor_role="admin",
        )  # fmt: skip
        for number, node in enumerate(nodes):
            Rank.objects.create(
                deployment=deployment,
                number=number,
                node=node,
                revision=revision,
                run_id=run.pk,
                container=containers[0],
            )

    def cycle(self) -> Told:
        """Seconds of the cycle and of our processor; when the last node that answers was kept; what is known after it."""
        from apps.deployments.models import Deployment
        from apps.watch import looking
        from apps.watch.models import Sighting

        kept: list[float] = []
        plain = looking._keep

        def watched(node: Any, seen: Any, **more: Any) -> None:
            plain(node, seen, **more)
            if not seen.reason:
                kept.append(time.monotonic())

        looking._keep = watched
        before, began, at = _cpu(), time.monotonic(), time.time()
        try:
            looking.look()
        finally:
            looking._keep = plain
        fresh = Sighting.objects.filter(at__gte=_moment(at - 0.001)).count()
        states = list(Deployment.objects.values_list("state", flat=True))
        return {
            "wall_s": time.monotonic() - began,
            "answered_s": (max(kept) - began) if kept else None,
            "cpu_s": _cpu() - before,
            "rss_mib": _rss_mib(),
            "seen": fresh,
            "serving": states.count("serving"),
            "deployments": len(states),
        }

    def thin(self) -> Told:
        from apps.watch import history
        from apps.watch.models import Point

        before, began = _cpu(), time.monotonic()
        history.thin()
        return {"wall_s": time.monotonic() - began, "cpu_s": _cpu() - before, "points": Point.objects.count()}

    def profile(self, cycles: int, file: str) -> Told:
        """For those who work on it."""
        import cProfile

        watching = cProfile.Profile()
        watching.enable()
        for _ in range(cycles):
            self.cycle()
        watching.disable()
        watching.dump_stats(file)
        return {}


def _moment(at: float) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _rss_mib() -> float:
    """Resident now, not at its largest."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


if __name__ == "__main__":
    main()
