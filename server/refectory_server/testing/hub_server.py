"""A small model hub on 127.0.0.1 that huggingface_hub's own client can talk to, faults included.

Serves what a download needs: model info and tree, files by HEAD and GET with ranges, ETags, the
x-repo-commit and x-linked headers, large files behind a redirect as on the real hub. Use it with
HF_ENDPOINT=server.url.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LFS_SUFFIXES = (".safetensors", ".gguf", ".bin")
_PIECE_BYTES = 1 << 16


@dataclass
class HubFile:
    content: bytes
    is_lfs: bool
    sent_content: bytes | None = None
    """Sent in its place: a content that does not fit the digest."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def blob_id(self) -> str:
        blob = b"blob %d\0" % len(self.content) + self.content
        return hashlib.sha1(blob, usedforsecurity=False).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.is_lfs else self.blob_id


@dataclass
class HubModel:
    """One repository with one commit, known as `main`."""

    files: dict[str, HubFile]
    token: str | None = None
    """Without it: 401."""
    gated_to: str | None = None
    """Only this token is let in: 403 for others."""

    @property
    def commit(self) -> str:
        names = "".join(f"{name}{file.etag}" for name, file in sorted(self.files.items()))
        return hashlib.sha1(names.encode(), usedforsecurity=False).hexdigest()

    def revision(self, name: str) -> str | None:
        return self.commit if name in ("main", "v1", self.commit) else None


@dataclass
class HubFaults:
    """What goes wrong from now on; numbers count down to 0."""

    num_failing_requests: int = 0
    """So many requests of any kind are answered 503."""
    cut_after_bytes: int | None = None
    """A response of a file's content ends there, without an orderly end."""
    num_cuts: int = 0
    """So many of them."""
    seconds_per_piece: float = 0.0
    """A slow network: pause after every 64 KiB."""
    ignores_ranges: bool = False


@dataclass
class HubServer:
    url: str
    models: dict[str, HubModel]
    faults: HubFaults = field(default_factory=HubFaults)
    requests: list[str] = field(default_factory=list)
    """Method, path and Range of every request so far."""
    num_content_bytes: int = 0
    """Of files' contents sent so far."""
    was_token_leaked: bool = False
    """A client sent its token to where large files lie."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add_folder(self, name: str, folder: Path) -> HubModel:
        """A model with a folder's files."""
        return self.add(name, {path.name: path.read_bytes() for path in sorted(folder.iterdir())})

    def add(self, name: str, files: dict[str, bytes]) -> HubModel:
        model = HubModel(
            {key: HubFile(content, key.endswith(LFS_SUFFIXES)) for key, content in files.items()}
        )
        self.models[name] = model
        return model

    def content_requests(self) -> list[str]:
        return [request for request in self.requests if "/lfs/" in request]


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """A running hub without models."""

    class Handler(_Handler):
        pass

    http_server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http_server.daemon_threads = True
    hub = HubServer(f"http://127.0.0.1:{http_server.server_port}", {})
    Handler.hub = hub
    thread = threading.Thread(target=http_server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        http_server.shutdown()
        thread.join()
        http_server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing: `HubServer.requests` has it."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        if self.hub.faults.num_failing_requests > 0:
            self.hub.faults.num_failing_requests -= 1
            self._refuse(503)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path):
            self._answer_api(*match.groups())
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._answer_resolve(*match.groups())
        elif match := re.fullmatch(r"/lfs/([0-9a-f]{64})", path):
            self.hub.was_token_leaked |= "Authorization" in self.headers
            self._answer_lfs(match[1])
        else:
            self._refuse(404)

    def _answer_api(self, name: str, kind: str | None, revision: str | None) -> None:
        model = self._allowed_model(name)
        if model is None:
            return
        if model.revision(revision or "main") is None:
            self._refuse(404, "RevisionNotFound")
            return
        answer: Any = _tree(model) if kind == "tree" else _info(name, model)
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _answer_resolve(self, name: str, revision: str, file_name: str) -> None:
        model = self._allowed_model(name)
        if model is None:
            return
        if model.revision(revision) is None:
            self._refuse(404, "RevisionNotFound")
            return
        file = model.files.get(file_name)
        if file is None:
            self._refuse(404, "EntryNotFound")
            return
        headers = {"X-Repo-Commit": model.commit, "ETag": f'"{file.etag}"'}
        if file.is_lfs:
            headers |= {
                "X-Linked-Size": str(len(file.content)),
                "X-Linked-ETag": f'"{file.sha256}"',
                # Another host, as the real hub's: the client must not send its token there.
                "Location": f"{self.hub.url.replace('127.0.0.1', 'localhost')}/lfs/{file.sha256}",
            }
            self._send(302, b"", headers)
        else:
            self._send_content(file, headers)

    def _answer_lfs(self, sha256: str) -> None:
        files = [file for model in self.hub.models.values() for file in model.files.values()]
        for file in files:
            if file.is_lfs and file.sha256 == sha256:
                self._send_content(file, {"ETag": f'"{sha256}"'})
                return
        self._refuse(404)

    def _allowed_model(self, name: str) -> HubModel | None:
        """The model; None where the request has been refused already."""
        model = self.hub.models.get(name)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        if model is None or (model.token is not None and token != model.token):
            # Like the real hub, which does not tell strangers what exists.
            self._refuse(401 if token is None else 404, "RepoNotFound")
            return None
        if model.gated_to is not None and token != model.gated_to:
            self._refuse(403, "GatedRepo")
            return None
        return model

    def _refuse(self, status: int, code: str | None = None) -> None:
        self._send(status, b"", {} if code is None else {"X-Error-Code": code})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_content(self, file: HubFile, headers: dict[str, str]) -> None:
        content = file.content if file.sent_content is None else file.sent_content
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, stop, status = 0, len(content), 200
        if match is not None and not self.hub.faults.ignores_ranges:
            start, status = int(match[1]), 206
            stop = min(stop, int(match[2]) + 1) if match[2] else stop
            if start >= len(content):
                self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
                return
            headers = {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(stop - start)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        faults = self.hub.faults
        cut_at = None
        if faults.num_cuts > 0 and faults.cut_after_bytes is not None:
            cut_at = start + faults.cut_after_bytes
            if cut_at < stop:
                faults.num_cuts -= 1
                stop = cut_at
            else:
                cut_at = None
        for begin in range(start, stop, _PIECE_BYTES):
            piece = content[begin : min(begin + _PIECE_BYTES, stop)]
            try:
                self.wfile.write(piece)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
                return
            with self.hub.lock:
                self.hub.num_content_bytes += len(piece)
            time.sleep(faults.seconds_per_piece)
        if cut_at is not None:
            self.close_connection = True


def _info(name: str, model: HubModel) -> dict[str, Any]:
    siblings = [
        {"rfilename": key, "size": len(file.content), "blobId": file.blob_id}
        | ({"lfs": {"sha256": file.sha256, "size": len(file.content), "pointerSize": 130}}
           if file.is_lfs else {})
        for key, file in model.files.items()
    ]  # fmt: skip
    return {"id": name, "modelId": name, "sha": model.commit, "siblings": siblings,
            "private": False, "tags": [], "downloads": 0, "likes": 0}  # fmt: skip


def _tree(model: HubModel) -> list[dict[str, Any]]:
    return [
        {"type": "file", "path": key, "size": len(file.content), "oid": file.blob_id}
        | ({"lfs": {"oid": file.sha256, "size": len(file.content), "pointerSize": 130}}
           if file.is_lfs else {})
        for key, file in model.files.items()
    ]  # fmt: skip
