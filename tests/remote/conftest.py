"""Real doors for the tests of this room."""

from tests.openssh import openssh

__all__ = ["openssh"]
