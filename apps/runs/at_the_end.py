"""What rooms above do in the transaction that ends a run, by its story. They put it here as they are set up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

AT_THE_END: dict[str, Callable[[Any], None]] = {}  # each gets the Run, ended
