"""Pretend Sparks: real SSH servers on loopback whose machines are played.

The room imports no other room of this project and is imported by none but tests, so that it can't share a
misunderstanding with the code it tests. `Lab` (client.py) is the library's door, `manage.py lab` the person's.
"""

from __future__ import annotations

from apps.lab.client import Lab, LabError, LabNode

__all__ = ["Lab", "LabError", "LabNode"]
