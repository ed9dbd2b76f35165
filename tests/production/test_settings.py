"""Code, .env.example, docs/settings.md and docker-compose.yml name the same settings."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.production.conftest import OURS, ROOT

READERS = {
    "text": True,
    "url": True,
    "kept_secret": True,
    "flag": False,
    "seconds": False,
    "whole": False,
    "port": False,
    "words": False,
}
COMPOSE_ONLY = {
    "BIND", "TLS_FOLDER", "SECRETS_FOLDER", "BASE_IMAGE", "SPARKWEB_IMAGE", "POSTGRES_IMAGE", "REDIS_IMAGE", "BUILD_NETWORK",
}  # fmt: skip


def read_by_the_code() -> set[str]:
    """Names given to the readers of sparkweb.env or to os.environ, anywhere in sparkweb and manage.py."""
    names: set[str] = set()
    for path in [*(ROOT / "sparkweb").rglob("*.py"), ROOT / "manage.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            on = ast.unparse(node.func.value)
            if on in ("env", "os.environ") or (path.name == "env.py" and on == "os"):
                names |= {
                    a.value
                    for a in node.args
                    if isinstance(a, ast.Constant) and re.fullmatch(r"[A-Z][A-Z_]+", str(a.value))
                }
        if path.name == "env.py":
            names |= set(re.findall(r'os\.environ(?:\.get\(|\[)"([A-Z_]+)"', path.read_text()))
    return {name.removesuffix("_FILE") for name in names} - {"DJANGO_SETTINGS_MODULE"}


def test_the_list_of_this_test_is_the_code_s() -> None:
    assert read_by_the_code() == set(OURS)


def test_every_setting_is_explained_twice() -> None:
    example = set(re.findall(r"^#?([A-Z][A-Z_]*)=", (ROOT / ".env.example").read_text(), re.M))
    assert {name.removesuffix("_FILE") for name in example} == set(OURS) | COMPOSE_ONLY
    table = {
        name
        for line in (ROOT / "docs" / "settings.md").read_text().splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([A-Z_]+)`", line.split("|")[1])
    }
    assert table == set(OURS) | COMPOSE_ONLY


def composed() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


def test_compose_hands_over_every_setting() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    handed = {name.removesuffix("_FILE") for name in composed()["x-sparkweb"]["environment"]}
    assert handed == set(OURS)
    asked = set(re.findall(r"\$\{([A-Z_]+)", text))
    example = set(re.findall(r"^#?([A-Z][A-Z_]*)=", (ROOT / ".env.example").read_text(), re.M))
    assert asked <= example, "the example explains what compose reads"


SERVICES = ("postgres", "redis", "migrate", "web", "worker", "beat", "manage")


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_closed_in(name: str) -> None:
    assert set(composed()["services"]) == set(SERVICES)
    service = composed()["services"][name]
    assert service["read_only"] is True and service["user"] not in ("", "root", "0")
    assert service["cap_drop"] == ["ALL"] and "no-new-privileges:true" in service["security_opt"]
    assert "privileged" not in service and all(mount.startswith("/") for mount in service["tmpfs"])
    for key, value in service.get("environment", {}).items():
        assert not re.search(r"PASSWORD$|_KEY$", key) or key == "TLS_KEY", f"{key}: secrets are files"
        assert "${" not in str(value) or ":" in str(value) or "-" in str(value), f"{key} has no default"
    if name in ("migrate", "manage"):
        assert service["restart"] == "no"
    else:
        assert (
            service["restart"] == "unless-stopped" and service["healthcheck"]["test"] and service["stop_grace_period"]
        )
    if name in ("postgres", "redis"):
        assert service["networks"] == ["inside"] and "ports" not in service


def test_only_web_is_published_and_on_loopback_by_default() -> None:
    services = composed()["services"]
    assert [name for name in SERVICES if "ports" in services[name]] == ["web"]
    assert services["web"]["ports"] == ["${BIND:-127.0.0.1}:${PORT:-8443}:${PORT:-8443}"]
    assert composed()["networks"]["inside"] == {"internal": True}


def test_the_image_is_built_from_hashes_alone() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert "--no-index" in text and "--require-hashes" in text and "USER 10001" in text
    assert not re.search(r"apt-get|curl|wget|https?://", text)
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert ignored.count("*") == 1 and not {"!var", "!secrets", "!.env", "!.git"} & set(ignored)


def test_secrets_are_made_once(tmp_path: Path) -> None:
    import stat
    import subprocess

    folder = tmp_path / "secrets"
    for _ in range(2):
        subprocess.run(["sh", "deploy/secrets.sh", str(folder)], cwd=ROOT, check=True, capture_output=True)
        made = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
        assert set(made) == {"secret_key", "sealing_key", "postgres_password", "redis_password"}
        assert len(set(made.values())) == 4 and all(len(value) == 64 for value in made.values())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = made
    subprocess.run(["sh", "deploy/secrets.sh", str(folder)], cwd=ROOT, check=True, capture_output=True)
    assert {path.name: path.read_text() for path in folder.iterdir() if path.is_file()} == before
