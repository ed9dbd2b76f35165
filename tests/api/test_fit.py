"""Will it fit, asked without a deployment: by whom, with what, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.conftest import Api, Call
