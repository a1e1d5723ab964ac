"""Pulling from a registry: a small one, served by the test over HTTP from an OCI layout."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest

from t1actors.images.errors import ImageRefused, RegistryError
from t1actors.images.registry import Reference, parse_reference, pull
from t1actors.images.sources import no_progress
from t1actors.images.store import ImageStore
from tests.images.archives import MANIFEST, Layout, config_of, entry, hexed, layer, oci_layout

LAYERS = [layer((entry("a"), bytes(range(256)) * 2000)), layer("b/", "b/c")]
CONFIG = config_of(LAYERS, Env=["A=1"])


class Registry:
    """``files`` are a layout's; ``tags`` name manifests. ``asked`` is what was requested, in order."""

    def __init__(self, layout: Layout, *, token: str = "", moved: bool = False) -> None:
        self.files = dict(layout.files)
        self.tags = {"1": layout.manifest}
        self.token = token
        self.moved = moved
        self.asked: list[str] = []
        self.scopes: list[str] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.host = f"127.0.0.1:{self.server.server_address[1]}"

    def _handler(registry) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(*registry.answer(self.path, self.headers.get("Authorization", "")))

            def answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                return

        return Handler

    def answer(self, path: str, authorization: str) -> tuple[int, bytes, dict[str, str]]:
        url = urlparse(path)
        if url.path == "/token":
            self.scopes += parse_qs(url.query)["scope"]
            return 200, json.dumps({"token": self.token}).encode(), {}
        if url.path.startswith("/elsewhere/"):
            return 200, self.files[url.path.removeprefix("/elsewhere/")], {}
        if self.token and authorization != f"Bearer {self.token}":
            challenge = f'Bearer realm="http://{self.host}/token",service="here",scope="repository:my/image:pull"'
            return 401, b"", {"WWW-Authenticate": challenge}
        self.asked.append(url.path.removeprefix("/v2/my/image/"))
        kind, _, name = self.asked[-1].partition("/")
        digest = self.tags.get(name, name)
        file = f"blobs/sha256/{digest.removeprefix('sha256:')}"
        if not url.path.startswith("/v2/my/image/") or file not in self.files:
            return 404, b"", {}
        if kind == "blobs" and self.moved:
            return 307, b"", {"Location": f"http://{self.host}/elsewhere/{file}"}
        return 200, self.files[file], {"Content-Type": MANIFEST}


@pytest.fixture
def serve() -> Generator[object]:
    running: list[Registry] = []

    def start(layout: Layout | None = None, **options) -> Registry:
        registry = Registry(layout or oci_layout(LAYERS, CONFIG), **options)
        threading.Thread(target=registry.server.serve_forever, daemon=True).start()
        running.append(registry)
        return registry

    yield start
    for registry in running:
        registry.server.shutdown()
        registry.server.server_close()


@pytest.mark.parametrize("options", [{}, {"token": "t0k3n"}, {"moved": True}])
def test_an_image_is_pulled_by_its_tag_whoever_asks_for_tokens_or_sends_elsewhere(
    store: ImageStore, serve, options
) -> None:
    registry = serve(**options)
    digest = pull(store, f"{registry.host}/my/image:1", progress=no_progress)
    assert digest == f"sha256:{hexed(CONFIG)}"
    first, _ = map(store.layer_path, store.image(digest).layers)
    assert (first / "a").stat().st_size == 512_000
    assert set(registry.scopes) == ({"repository:my/image:pull"} if options.get("token") else set())


def test_an_index_leads_to_the_image_for_this_machine(store: ImageStore, serve) -> None:
    registry = serve(oci_layout(LAYERS, CONFIG, other_platform=True))
    assert pull(store, f"{registry.host}/my/image:1", progress=no_progress) == f"sha256:{hexed(CONFIG)}"


def test_an_image_is_pulled_by_the_digest_of_its_manifest(store: ImageStore, serve) -> None:
    registry = serve()
    reference = f"{registry.host}/my/image@{registry.tags['1']}"
    assert pull(store, reference, progress=no_progress) == f"sha256:{hexed(CONFIG)}"
    registry.files[f"blobs/sha256/{registry.tags['1'].removeprefix('sha256:')}"] += b" "
    with pytest.raises(ImageRefused, match="it was changed or damaged"):
        pull(store, reference, progress=no_progress)


def test_layers_that_are_there_are_not_fetched_again(store: ImageStore, serve) -> None:
    registry = serve()
    pull(store, f"{registry.host}/my/image:1", progress=no_progress)
    registry.asked.clear()
    pull(store, f"{registry.host}/my/image:1", progress=no_progress)
    assert registry.asked == ["manifests/1", f"blobs/sha256:{hexed(CONFIG)}"]


def test_a_registry_that_gives_other_bytes_is_found_out(store: ImageStore, serve) -> None:
    registry = serve()
    blobs = [name for name, data in registry.files.items() if data[:2] == b"\x1f\x8b"]
    registry.files[blobs[0]], registry.files[blobs[1]] = registry.files[blobs[1]], registry.files[blobs[0]]
    with pytest.raises(ImageRefused, match="the image says sha256:"):
        pull(store, f"{registry.host}/my/image:1", progress=no_progress)
    assert store.list() == []


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("{host}/my/image:2", r"manifests/2: status 404: it has no such image"),
        ("{host}/other:1", "status 404"),
        ("127.0.0.1:1/my/image:1", r"127\.0\.0\.1:1 cannot be reached or broke off.*import from a file"),
    ],
)
def test_what_a_registry_does_not_have_is_named(store: ImageStore, serve, reference: str, says: str) -> None:
    with pytest.raises(RegistryError, match=says):
        pull(store, reference.format(host=serve().host), progress=no_progress)


def test_a_token_is_asked_for_only_over_tls_or_of_the_registry_itself(store: ImageStore, serve) -> None:
    registry = serve(token="x")
    registry.host, real = "example.invalid", registry.host
    with pytest.raises(RegistryError, match="asks for a login of kind 'Bearer'"):
        pull(store, f"{real}/my/image:1", progress=no_progress)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("debian:12", Reference("registry-1.docker.io", "library/debian", "12")),
        ("debian", Reference("registry-1.docker.io", "library/debian", "latest")),
        ("docker.io/python:3.12-slim", Reference("registry-1.docker.io", "library/python", "3.12-slim")),
        ("me/mine:1", Reference("registry-1.docker.io", "me/mine", "1")),
        ("ghcr.io/me/mine", Reference("ghcr.io", "me/mine", "latest")),
        ("localhost:5000/mine", Reference("localhost:5000", "mine", "latest")),
        (f"a.b/c:1@sha256:{'0' * 64}", Reference("a.b", "c", f"sha256:{'0' * 64}")),
    ],
)
def test_references_are_read_as_docker_reads_them(text: str, expected: Reference) -> None:
    assert parse_reference(text) == expected


@pytest.mark.parametrize("text", ["", "UPPER:1", "a/../b:1", "https://debian"])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(ImageRefused, match="names no repository"):
        parse_reference(text)


def test_a_pull_that_broke_off_goes_on_where_it_was(store: ImageStore, serve, tmp_path: Path) -> None:
    registry = serve()
    second = next(name for name in reversed(registry.files) if registry.files[name][:2] == b"\x1f\x8b")
    whole = registry.files.pop(second)
    with pytest.raises(RegistryError, match="404"):
        pull(store, f"{registry.host}/my/image:1", progress=no_progress)
    registry.files[second] = whole
    registry.asked.clear()
    pull(store, f"{registry.host}/my/image:1", progress=no_progress)
    assert sum("blobs" in path for path in registry.asked) == 2  # the configuration and one layer
