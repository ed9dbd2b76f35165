"""One story a file: what is to happen, from a spec and the sheets of its nodes. Same input, same plan."""

from apps.plan.stories.adopt import adopt
from apps.plan.stories.benchmark import benchmark
from apps.plan.stories.clear import clear
from apps.plan.stories.distribute import distribute, remove, verify
from apps.plan.stories.fetch import fetch
from apps.plan.stories.launch import launch
from apps.plan.stories.probe import probe
from apps.plan.stories.provision import provision
from apps.plan.stories.relaunch import relaunch
from apps.plan.stories.restore import restore
from apps.plan.stories.smoke import smoke
from apps.plan.stories.stop import stop
from apps.plan.stories.unlock import unlock

__all__ = [
    "adopt",
    "benchmark",
    "clear",
    "distribute",
    "fetch",
    "launch",
    "probe",
    "provision",
    "relaunch",
    "remove",
    "restore",
    "smoke",
    "stop",
    "unlock",
    "verify",
]
