"""Records what this version's database looks like, for the versions after it (tests/production/releases/README.md).

sh scripts/postgres.sh -- .venv/bin/python -m tests.production.record_release 0.1.0
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.production.conftest import ROOT, Databases, Installation

RELEASES = Path(__file__).resolve().parent / "releases"
FILL = """
from apps.audit.actor import Actor
from apps.inventory import services
from tests.web.seed import seed
seed()
root = Actor("person", 4, "root1", "admin")
services.keep_secret(root, name="hub token", value="not a real one")
"""
# What every later version must still find. It is asked with that version's own models: change the question with them,
# never the recorded answer.
LOOK = """
import hashlib, json
from apps.audit.verifying import verify
from apps.deployments.models import Consent, Deployment, Revision
from apps.inventory import sealing
from apps.inventory.models import Credential, HostKey, Node, Secret
from apps.inventory.services import KEY_CONTEXT, SECRET_CONTEXT, latest_sheet
from apps.people.models import User
from apps.recipes.models import Recipe
from apps.runs import lines
from apps.runs.models import Chunk, Run

def digest(text):
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()

def stored(run):
    return b"".join(bytes(data) for data in Chunk.objects.filter(stream__step__run=run).order_by(
        "stream__step__ordinal", "stream__name", "offset").values_list("data", flat=True))

def read(run):
    return [len(lines.lines(run, limit=5000)["lines"]), lines.lines(run, limit=1)["lines"][0]["text"]]

verdict = verify()
print(json.dumps({
    "people": sorted(User.objects.values_list("name", "role")),
    "keys": {row.name: digest(sealing.unseal(row.sealed_private_key, context=KEY_CONTEXT)) for row in Credential.objects.all()},
    "secrets": {row.name: digest(sealing.unseal(row.sealed_value, context=SECRET_CONTEXT)) for row in Secret.objects.all()},
    "nodes": sorted(Node.objects.values_list("name", "address", "user", "jump__name", "state")),
    "host keys": sorted(HostKey.objects.values_list("node__name", "sha256", "state")),
    "sheets": {n.name: bool(latest_sheet(n) and latest_sheet(n).memory) for n in Node.objects.order_by("name")},
    "recipes": sorted(Recipe.objects.values_list("slug", flat=True)),
    "deployments": sorted([d.name, d.state, d.reason, d.revision.spec.port, list(d.revision.spec.nodes)] for d in Deployment.objects.all()),
    "revisions": Revision.objects.count(),
    "consents": Consent.objects.count(),
    "runs": [[r.pk, r.story, r.state, r.reason, r.steps.count(), digest(stored(r)), *read(r)] for r in Run.objects.order_by("pk")],
    "audit": [verdict["ok"], verdict["entries"], verdict["head"]],
}))
"""


def migration_files() -> dict[str, str]:
    """app.name -> SHA-256 of the file."""
    files = sorted((ROOT / "apps").glob("*/migrations/[0-9]*.py"))
    return {f"{path.parts[-3]}.{path.stem}": hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def look(place: Installation) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.python(LOOK).splitlines()[-1])
    return found


def dump_of(place: Installation) -> str:
    """All of a database as SQL."""
    url = place.settings.get("DATABASE_URL")
    if url is None:
        with contextlib.closing(sqlite3.connect(place.folder / "sparkweb.sqlite3")) as database:
            return "\n".join(database.iterdump()) + "\n"
    said = subprocess.run(
        ["pg_dump", "--no-owner", "--no-privileges", f"--dbname={url}"], capture_output=True, text=True, check=True
    ).stdout
    # \restrict guards psql against a hostile server; an older psql does not know it.
    return "".join(
        line for line in said.splitlines(keepends=True) if not line.startswith(("\\restrict", "\\unrestrict"))
    )


def put(dump: str, place: Installation) -> None:
    """The SQL into an empty database."""
    url = place.settings.get("DATABASE_URL")
    if url is None:
        with contextlib.closing(sqlite3.connect(place.folder / "sparkweb.sqlite3")) as database:
            database.executescript(dump)
        return
    words = ["psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--output=/dev/null", f"--dbname={url}"]
    subprocess.run(words, input=dump, text=True, check=True, capture_output=True)


def record(release: str) -> None:
    target = RELEASES / release
    if target.exists():
        sys.exit(f"{target} is there: what a release left is never made again")
    told: dict[str, object] = {"migrations": migration_files(), "sealing_key": secrets.token_urlsafe(48)}
    dumps = {}
    for kind in ("sqlite", "postgresql"):
        with tempfile.TemporaryDirectory() as name:
            made = Databases(kind, Path(name))
            try:
                place = made.empty("recorded")
                place.settings["SPARKWEB_KEY"] = str(told["sealing_key"])
                place.manage("serve", "prepare")
                place.python(FILL)
                told[kind] = look(place)
                dumps[kind] = dump_of(place)
            finally:
                made.drop()
    target.mkdir(parents=True)
    for kind, dump in dumps.items():
        (target / f"{kind}.sql.gz").write_bytes(gzip.compress(dump.encode(), mtime=0))
    (target / "told.json").write_text(json.dumps(told, indent=1) + "\n")


def main() -> None:
    if len(sys.argv) != 2 or shutil.which("pg_dump") is None:
        sys.exit(__doc__)
    record(sys.argv[1])


if __name__ == "__main__":
    main()
