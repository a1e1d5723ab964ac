"""Pulling from a registry: a small one, served by the test over HTTP from an OCI layout."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest

from t1actors.cli.main import main
from t1actors.images.credentials import Logins
from t1actors.images.errors import ImageRefused, RegistryError
from t1actors.images.registry import Reference, parse_reference, pull
from t1actors.images.sources import no_progress
from t1actors.images.store import ImageStore, remove
from tests.images.archives import MANIFEST, Layout, config_of, entry, hexed, layer, oci_layout

NO_LOGINS = Logins(Path("/nowhere/config.json"))
SECRET = "s3cret"
LAYERS = [layer((entry("a"), bytes(range(256)) * 2000)), layer("b/", "b/c")]
CONFIG = config_of(LAYERS, Env=["A=1"])


class Registry:
    """``files`` are a layout's; ``tags`` name manifests. ``asked`` is what was requested, in order."""

    def __init__(
        self, layout: Layout, *, token: str = "", moved: bool | str = False, password: str = "", basic: bool = False
    ) -> None:
        """``password`` is ``name:password``: of whoever wants a token, or with ``basic`` of every request. ``moved``: blobs
        are elsewhere, on the host named."""
        self.files = dict(layout.files)
        self.tags = {"1": layout.manifest}
        self.token = token
        self.moved = moved
        self.expected = f"Basic {base64.b64encode(password.encode()).decode()}" if password else ""
        self.basic = basic
        self.given: list[str] = []
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
        self.given.append(authorization)
        if url.path == "/token":
            if self.expected and authorization != self.expected:
                return 401, b"", {}
            self.scopes += parse_qs(url.query)["scope"]
            return 200, json.dumps({"token": self.token}).encode(), {}
        if url.path.startswith("/elsewhere/"):
            return 200, self.files[url.path.removeprefix("/elsewhere/")], {}
        if self.basic and authorization != self.expected:
            return 401, b"", {"WWW-Authenticate": 'Basic realm="here"'}
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
            there = self.moved if isinstance(self.moved, str) else self.host
            return 307, b"", {"Location": f"http://{there}/elsewhere/{file}"}
        return 200, self.files[file], {"Content-Type": MANIFEST}


@pytest.fixture
def serve() -> Generator[object]:
    running: list[Registry] = []

    def start(layout: Layout | None = None, **options) -> Registry:
        registry = Registry(layout or oci_layout(LAYERS, CONFIG), **options)
        threading.Thread(target=registry.server.serve_forever, args=(0.02,), daemon=True).start()
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
    digest = pull(store, f"{registry.host}/my/image:1", progress=no_progress, logins=NO_LOGINS)
    assert digest == f"sha256:{hexed(CONFIG)}"
    first, _ = map(store.layer_path, store.image(digest).layers)
    assert (first / "a").stat().st_size == 512_000
    assert set(registry.scopes) == ({"repository:my/image:pull"} if options.get("token") else set())


def test_an_index_leads_to_the_image_for_this_machine(store: ImageStore, serve) -> None:
    registry = serve(oci_layout(LAYERS, CONFIG, other_platform=True))
    assert (
        pull(store, f"{registry.host}/my/image:1", progress=no_progress, logins=NO_LOGINS) == f"sha256:{hexed(CONFIG)}"
    )


def test_an_image_is_pulled_by_the_digest_of_its_manifest(store: ImageStore, serve) -> None:
    registry = serve()
    reference = f"{registry.host}/my/image@{registry.tags['1']}"
    assert pull(store, reference, progress=no_progress, logins=NO_LOGINS) == f"sha256:{hexed(CONFIG)}"
    registry.files[f"blobs/sha256/{registry.tags['1'].removeprefix('sha256:')}"] += b" "
    with pytest.raises(ImageRefused, match="it was changed or damaged"):
        pull(store, reference, progress=no_progress, logins=NO_LOGINS)


def test_layers_that_are_there_are_not_fetched_again(store: ImageStore, serve) -> None:
    registry = serve()
    pull(store, f"{registry.host}/my/image:1", progress=no_progress, logins=NO_LOGINS)
    registry.asked.clear()
    pull(store, f"{registry.host}/my/image:1", progress=no_progress, logins=NO_LOGINS)
    assert registry.asked == ["manifests/1", f"blobs/sha256:{hexed(CONFIG)}"]


def test_a_registry_that_gives_other_bytes_is_found_out(store: ImageStore, serve) -> None:
    registry = serve()
    blobs = [name for name, data in registry.files.items() if data[:2] == b"\x1f\x8b"]
    registry.files[blobs[0]], registry.files[blobs[1]] = registry.files[blobs[1]], registry.files[blobs[0]]
    with pytest.raises(ImageRefused, match="the image says sha256:"):
        pull(store, f"{registry.host}/my/image:1", progress=no_progress, logins=NO_LOGINS)
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
        pull(store, reference.format(host=serve().host), progress=no_progress, logins=NO_LOGINS)


def test_a_token_is_asked_for_only_over_tls_or_of_the_registry_itself(store: ImageStore, serve) -> None:
    registry = serve(token="x")
    registry.host, real = "example.invalid", registry.host
    with pytest.raises(RegistryError, match="asks for a login of kind 'Bearer'"):
        pull(store, f"{real}/my/image:1", progress=no_progress, logins=NO_LOGINS)


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
        pull(store, f"{registry.host}/my/image:1", progress=no_progress, logins=NO_LOGINS)
    registry.files[second] = whole
    registry.asked.clear()
    pull(store, f"{registry.host}/my/image:1", progress=no_progress, logins=NO_LOGINS)
    assert sum("blobs" in path for path in registry.asked) == 2  # the configuration and one layer


def logins(directory: Path, host: str, content: str = "") -> Logins:
    """A file of logins with one entry: by default ``me`` with ``SECRET``."""
    auth = base64.b64encode(f"me:{SECRET}".encode()).decode()
    entry = content or json.dumps({"auth": auth})
    file = directory / "config.json"
    file.write_text(f'{{"auths": {{"{host}": {entry}}}, "HttpHeaders": {{}}}}')
    return Logins(file)


@pytest.mark.parametrize("options", [{"token": "t0k3n"}, {"basic": True}])
@pytest.mark.parametrize("key", ["{}", "http://{}/v2/", "https://{}"])
def test_a_private_image_is_pulled_with_the_login_of_its_registry(
    store: ImageStore, serve, tmp_path: Path, options: dict[str, object], key: str
) -> None:
    registry = serve(password=f"me:{SECRET}", **options)
    found = logins(tmp_path, key.format(registry.host))
    digest = pull(store, f"{registry.host}/my/image:1", progress=no_progress, logins=found)
    assert digest == f"sha256:{hexed(CONFIG)}"


def test_a_name_and_a_password_in_plain_do_too(store: ImageStore, serve, tmp_path: Path) -> None:
    registry = serve(password=f"me:{SECRET}", basic=True)
    found = logins(tmp_path, registry.host, f'{{"username": "me", "password": "{SECRET}"}}')
    assert pull(store, f"{registry.host}/my/image:1", progress=no_progress, logins=found)


def test_no_login_goes_to_a_registry_that_asks_for_none_or_to_whom_it_sends_for_blobs(
    store: ImageStore, serve, tmp_path: Path
) -> None:
    other = serve()
    for registry in (serve(), serve(password=f"me:{SECRET}", basic=True, moved=other.host)):
        pull(store, f"{registry.host}/my/image:1", progress=no_progress, logins=logins(tmp_path, registry.host))
        for layer_of_image in store.layer_path(f"sha256:{hexed(LAYERS[0])}").parent.parent.iterdir():
            remove(layer_of_image)
        assert (set(registry.given) == {""}) is not registry.basic
    assert other.given == [""] * 3


def test_a_token_that_has_grown_old_is_asked_for_again(store: ImageStore, serve) -> None:
    registry = serve(token="first")
    answer = registry.answer

    def aging(path: str, authorization: str) -> tuple[int, bytes, dict[str, str]]:
        found = answer(path, authorization)
        if "/blobs/" in path and found[0] == 200:
            registry.token += "+"
        return found

    registry.answer = aging
    assert pull(store, f"{registry.host}/my/image:1", progress=no_progress, logins=NO_LOGINS)
    assert len(registry.scopes) == 3


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"auths": {}}', "config.json has no login for 127.0.0.1:"),
        ('{"auths": {"%s": {"auth": "bWU6d3Jvbmc="}}}', "it does not take the login of"),
        ('{"auths": {"other.example": {"auth": "bWU6czNjcmV0"}}}', "has no login for"),
        ('{"auths": {"%s": {}}, "credsStore": "desktop"}', "leaves it to the helper docker-credential-desktop"),
        ('{"credHelpers": {"%s": "ecr-login"}}', "leaves it to the helper docker-credential-ecr-login"),
        ('{"auths": {"%s": {"identitytoken": "s3cret"}}}', "has an identity token, which is not supported"),
        ('{"auths": {"%s": {"auth": "s3cret!"}}}', "`auth` is not base64 of NAME:PASSWORD"),
        ('{"auths": {"%s": "s3cret"}}', "not a file of logins"),
        ("s3cret", "not a file of logins"),
    ],
)
@pytest.mark.parametrize("options", [{"token": "t0k3n"}, {"basic": True}])
def test_why_there_is_no_login_is_said_without_what_is_secret(
    store: ImageStore, serve, tmp_path: Path, options: dict[str, object], content: str, says: str
) -> None:
    registry = serve(password=f"me:{SECRET}", **options)
    (tmp_path / "config.json").write_text(content.replace("%s", registry.host))
    found = Logins(tmp_path / "config.json")
    with pytest.raises(RegistryError) as refused:
        pull(store, f"{registry.host}/my/image:1", progress=no_progress, logins=found)
    assert says in str(refused.value)
    for text in (str(refused.value), repr(found), repr(refused.value.__cause__)):
        assert SECRET not in text
        assert "czNjcmV0" not in text


def test_the_command_takes_a_file_of_logins_and_records_none_of_it(
    serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = serve(password=f"me:{SECRET}", token="t0k3n")
    file = logins(tmp_path, registry.host).file
    command = ["image", "import", "mine:1", f"docker://{registry.host}/my/image:1", f"--store={tmp_path / 'store'}"]
    assert main([*command, "--auth-file", str(tmp_path / "none.json")]) == 1
    assert "none.json: not there; `docker login` writes one" in capsys.readouterr().err
    assert main([*command, "--auth-file", str(file)]) == 0
    kept = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    for secret in (SECRET.encode(), b"t0k3n", base64.b64encode(f"me:{SECRET}".encode())):
        assert secret not in kept
