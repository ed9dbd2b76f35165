"""The programs that a Spark has and this machine has not, or through which a node would look like this machine."""

from __future__ import annotations

from apps.lab.tools import fabric, hardware, network, packages, setup, system  # noqa: F401

from apps.lab.tools import docker, systemd  # noqa: F401  isort: skip
