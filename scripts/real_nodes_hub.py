"""A small hub for model files: `real_nodes_hub.py ADDRESS PORT FOLDER` serves FOLDER/NAME as the model `lab/NAME`.

Knows what a hub client needs: /api/models/ID[/revision/REV] and /ID/resolve/REV/FILE with ETag, commit, size and ranges.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_MODEL = re.compile(r"/api/models/lab/([A-Za-z0-9._-]+)(?:/revision/[^/?]+)?(?:\?.*)?")
_FILE = re.compile(r"/lab/([A-Za-z0-9._-]+)/resolve/[^/?]+/([A-Za-z0-9._-]+)(?:\?.*)?")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Hub(BaseHTTPRequestHandler):
    """GET and HEAD."""

    protocol_version = "HTTP/1.1"
    folder = Path()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        model, file = _MODEL.fullmatch(self.path), _FILE.fullmatch(self.path)
        if model and (self.folder / model[1]).is_dir():
            self._describe(model[1])
        elif file and (self.folder / file[1] / file[2]).is_file():
            self._send_file(file[1], self.folder / file[1] / file[2])
        else:
            self._answer(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})

    def _describe(self, name: str) -> None:
        files = sorted(path.name for path in (self.folder / name).iterdir() if path.is_file())
        body = {"id": f"lab/{name}", "modelId": f"lab/{name}", "sha": _commit(name), "private": False, "gated": False,
                "tags": [], "siblings": [{"rfilename": file} for file in files]}  # fmt: skip
        self._answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _send_file(self, name: str, path: Path) -> None:
        data = path.read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Repo-Commit": _commit(name),
            "Accept-Ranges": "bytes",
        }
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        if not wanted:
            self._answer(200, data, headers)
            return
        first, last = int(wanted[1]), min(int(wanted[2] or len(data) - 1), len(data) - 1)
        if first >= len(data):
            self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        self._answer(206, data[first : last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def _answer(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _commit(name: str) -> str:
    return hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()


if __name__ == "__main__":
    Hub.folder = Path(sys.argv[3])
    ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Hub).serve_forever()
