"""A Hub of one machine: enough of its HTTP interface for `datasets` to stream Parquet files from repositories."""

import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlparse

SHA = "0123456789abcdef0123456789abcdef01234567"
"""The commit of every repository."""


class Hub:
    """Serves the folders below `root` as repositories OWNER/NAME."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tokens: set[str] = set()
        """What clients said they are."""
        self.failures = 0
        """So many next requests for a file's bytes are answered with 503."""
        self.private: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer()

    def _answer(self) -> None:
        self.hub.tokens.add(self.headers.get("authorization", ""))
        kind, *parts = unquote(urlparse(self.path).path).strip("/").split("/")
        if kind == "api":
            repository, rest = "/".join(parts[1:3]), parts[3:]
        else:
            repository, rest = "/".join(parts[:2]), parts[2:]
        folder = self.hub.root / repository
        if repository in self.hub.private:
            self._json({"error": "no"}, 401, "GatedRepo" if rest else "")
        elif not folder.is_dir():
            self._json({"error": "no"}, 404, "RepoNotFound")
        elif kind == "api":
            self._api(folder, rest)
        else:
            self._file(folder / "/".join(rest[2:]))

    def _api(self, folder: Path, rest: list[str]) -> None:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if not rest or rest[0] == "revision":
            if rest[1:] and rest[1] not in (SHA, "main"):
                self._json({"error": "no"}, 404, "RevisionNotFound")
                return
            siblings = [{"rfilename": str(path.relative_to(folder))} for path in files]
            name = str(folder.relative_to(self.hub.root))
            self._json(
                {"id": name, "sha": SHA, "private": False, "gated": False, "tags": [], "siblings": siblings}
            )
        elif rest[0] == "tree":
            below = folder / "/".join(rest[2:])
            self._json(
                [self._entry(path, folder) for path in (sorted(below.iterdir()) if below.is_dir() else [])]
            )
        else:
            wanted = json.loads(self._body)["paths"]
            self._json([self._entry(folder / name, folder) for name in wanted if (folder / name).exists()])

    def _entry(self, path: Path, folder: Path) -> dict[str, Any]:
        told = {"path": str(path.relative_to(folder)), "oid": "0" * 40}
        return told | (
            {"type": "directory"} if path.is_dir() else {"type": "file", "size": path.stat().st_size}
        )

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._json({"error": "no"}, 404, "EntryNotFound")
            return
        if path.suffix == ".parquet" and self.hub.failures:
            self.hub.failures -= 1
            self._json({"error": "busy"}, 503, "")
            return
        content, wanted = path.read_bytes(), self.headers.get("range")
        begin, end = 0, len(content)
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or end - 1) + 1, len(content))
        headers = {
            "etag": f'"{hashlib.sha1(content).hexdigest()}"',
            "x-repo-commit": SHA,
            "accept-ranges": "bytes",
        }
        if wanted:
            headers["content-range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        self._send(206 if wanted else 200, content[begin:end], headers)

    def _json(self, document: Any, status: int = 200, error: str = "") -> None:
        self._send(
            status, json.dumps(document).encode(), {"content-type": "application/json", "x-error-code": error}
        )

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
