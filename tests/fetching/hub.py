"""A small model hub on loopback: the API and file routes that are asked, with what goes wrong at real ones. It counts every byte."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LFS = (".safetensors", ".gguf", ".bin")


@dataclass
class Model:
    repo: str
    files: dict[str, bytes]
    branches: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    @property
    def commit(self) -> str:
        return self.branches["main"]


def oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def is_lfs(path: str) -> bool:
    return path.endswith(LFS)


def etag(path: str, data: bytes) -> str:
    return hashlib.sha256(data).hexdigest() if is_lfs(path) else oid(data)


@dataclass
class Hub:
    address: str = ""
    storage: str = ""  # another address, where large files lie
    models: dict[str, Model] = field(default_factory=dict)
    token: str = ""  # that opens what is gated
    without_access: str = ""  # a token that is valid but has no access
    page: int = 1000  # files a page of the list
    sent: Counter[str] = field(default_factory=Counter)  # bytes of files by path
    asked: list[str] = field(default_factory=list)  # METHOD path
    leaked: list[str] = field(default_factory=list)  # requests at the storage that carried a token
    put_off: dict[str, list[tuple[int, str]]] = field(
        default_factory=dict
    )  # path part -> answers (status, Retry-After) first
    drops: dict[str, list[int]] = field(default_factory=dict)  # file -> after how many bytes of an answer it hangs up
    damages: Counter[str] = field(default_factory=Counter)  # file -> how many answers come with a wrong byte
    no_ranges: bool = False
    xet: bool = False  # it names another storage too, which is not there
    rate: int = 0  # bytes a second of each file; 0: as fast as it goes
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, repo: str, files: dict[str, bytes], **more: Any) -> Model:
        commit = hashlib.sha1(repr(sorted(files)).encode() + repo.encode(), usedforsecurity=False).hexdigest()
        self.models[repo] = Model(repo, files, {"main": commit}, **more)
        return self.models[repo]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        return

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        parts = urlsplit(self.path)
        hub, self.body = self.hub, body
        hub.asked.append(f"{self.command} {self.path}")
        path = unquote(parts.path)
        with hub.lock:
            for part, answers in hub.put_off.items():
                if part in path and answers:
                    status, after = answers.pop(0)
                    self._say(status, {"error": "put off"}, {"Retry-After": after} if after else {})
                    return
        if parts.path.startswith("/api/models/"):
            self._api(parts.path.removeprefix("/api/models/"), parse_qs(parts.query))
        elif parts.path.startswith("/storage/"):
            _, _, repo, file = path.split("/", 3)
            if self.headers.get("Authorization"):
                hub.leaked.append(self.path)
            self._file(hub.models[repo.replace("--", "/")], file, {})
        elif found := re.fullmatch(r"/(?P<repo>[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<file>.+)", path):
            self._resolve(found["repo"], found["revision"], found["file"])
        else:
            self._say(404, {"error": "not found"})

    def _model(self, repo: str) -> Model | None:
        """The model, or None after an answer that refuses it."""
        model = self.hub.models.get(repo)
        given = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if model is None or (model.private and given != self.hub.token):
            self._say(401 if not given else 404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            return None
        return model

    def _gate(self, model: Model) -> bool:
        given = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if not model.gated or (given and given == self.hub.token):
            return True
        words = f"Access to model {model.repo} is restricted."
        status = 403 if given and given == self.hub.without_access else 401
        self._say(status, {"error": words}, {"X-Error-Code": "GatedRepo", "X-Error-Message": words})
        return False

    def _api(self, rest: str, query: dict[str, list[str]]) -> None:
        found = re.fullmatch(r"(?P<repo>.+?)(?:/(?P<what>revision|tree)/(?P<revision>.+))?", rest)
        assert found
        model = self._model(unquote(found["repo"]))
        if model is None:
            return
        name = unquote(found["revision"] or "main")
        commit = model.branches.get(name) or (name if name in model.branches.values() else None)
        if commit is None:
            self._say(404, {"error": f"Invalid rev id: {name}"}, {"X-Error-Code": "RevisionNotFound"})
            return
        if found["what"] == "tree":
            self._tree(model, query)
            return
        siblings = [{"rfilename": path} for path in model.files]
        gated = "manual" if model.gated else False
        self._say(200, {"_id": "1", "id": model.repo, "private": False, "sha": commit, "gated": gated, "tags": ["a \"b\""], "siblings": siblings})  # fmt: skip

    def _tree(self, model: Model, query: dict[str, list[str]]) -> None:
        if not self._gate(model):
            return
        rows: list[dict[str, Any]] = [
            {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder}
            for folder in sorted({path.rsplit("/", 1)[0] for path in model.files if "/" in path})
        ]
        for path, data in model.files.items():
            row: dict[str, Any] = {"type": "file", "oid": oid(data), "size": len(data), "path": path}
            if is_lfs(path):
                row["lfs"] = {"oid": etag(path, data), "size": len(data), "pointerSize": 134}
                if self.hub.xet:
                    row["xetHash"] = "f" * 64
            rows.append(row)
        first = int(query.get("cursor", ["0"])[0])
        more = {}
        if first + self.hub.page < len(rows):
            after = f"/api/models/{model.repo}/tree/{model.commit}?recursive=true&cursor={first + self.hub.page}"
            more["Link"] = f'<https://huggingface.co{after}>; rel="next"'
        self._say(200, rows[first : first + self.hub.page], more)

    def _resolve(self, repo: str, revision: str, file: str) -> None:
        model = self._model(repo)
        if model is None or not self._gate(model):
            return
        if file not in model.files:
            self._say(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            return
        data = model.files[file]
        headers = {"X-Repo-Commit": model.commit, "ETag": f'"{etag(file, data)}"', "Accept-Ranges": "bytes"}
        if not is_lfs(file):
            self._file(model, file, headers)
            return
        headers |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{etag(file, data)}"'}
        headers["Location"] = f"{self.hub.storage}/storage/{repo.replace('/', '--')}/{file}"
        self._say(302, None, headers)

    def _file(self, model: Model, file: str, headers: dict[str, str]) -> None:
        hub, data = self.hub, model.files[file]
        first, status = 0, 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted and not hub.no_ranges:
            first, status = int(wanted[1]), 206
            if first >= len(data):
                self._say(416, None, {"Content-Range": f"bytes */{len(data)}"})
                return
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        part = data[first:]
        with hub.lock:
            if hub.damages[file] > 0:
                hub.damages[file] -= 1
                part = bytes([part[0] ^ 1]) + part[1:]
            waiting = hub.drops.get(file)
            most = waiting.pop(0) if waiting else len(part)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(part))}.items():
            self.send_header(name, value)
        self.end_headers()
        if not self.body:
            return
        step = max(1, hub.rate // 20) if hub.rate else 65536
        for at in range(0, min(most, len(part)), step):
            piece = part[at : min(at + step, most)]
            try:
                self.wfile.write(piece)
                self.wfile.flush()
            except OSError:
                break
            with hub.lock:
                hub.sent[file] += len(piece)
            if hub.rate:
                threading.Event().wait(0.05)
        if most < len(part):
            self.close_connection = True

    def _say(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.body:
            self.wfile.write(data)


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub and its storage at two addresses of loopback."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    hub.address, hub.storage = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    hub.storage = hub.storage.replace("127.0.0.1", "localhost")
    threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
