"""Loaded before Django's settings (pytest -p): tests keep their state in a folder of their own."""

import os
import tempfile

if "SPARKWEB_TEST_VAR" not in os.environ:
    os.environ["SPARKWEB_TEST_VAR"] = tempfile.mkdtemp(prefix="sparkweb-test-")
os.environ["VAR"] = os.environ["SPARKWEB_TEST_VAR"]
os.environ.pop("REDIS_URL", None)
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
