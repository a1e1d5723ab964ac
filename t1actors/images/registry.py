"""Pulls an image from a registry: the OCI distribution API (Docker's v2), anonymously, with a password, or with a token.

Guarantees: every manifest, configuration and layer has the digest that names it; layers that the store has are not fetched,
so a pull that broke off goes on from there; a token goes to the registry that asked for it, a password there or where that
one hands out tokens, and neither to anybody they redirect to. Registries of this machine are spoken to in plain HTTP, all
others over TLS.

Needs the package ``httpx2`` (``pip install 't1actors[images]'``). Left out: pushing.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import IO, NamedTuple

import httpx2
import msgspec

from t1actors.images.credentials import DOCKER_HUB, Login, Logins
from t1actors.images.errors import ImageRefused, RegistryError
from t1actors.images.image import digest_of
from t1actors.images.sources import (
    MAX_DOCUMENT_BYTES,
    Descriptor,
    Progress,
    checked,
    choose_manifest,
    import_manifest,
)
from t1actors.images.store import ImageStore

_ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)
_OWN_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT_S = 30.0


class Reference(NamedTuple):
    """Where an image is: ``tag`` is a tag or a manifest's digest."""

    host: str
    repository: str
    tag: str


class _Token(msgspec.Struct, frozen=True):
    token: str = ""
    access_token: str = ""


def parse_reference(text: str) -> Reference:
    """``debian:12`` is Docker Hub's; ``host:port/name@sha256:...`` says it all. Raises ``ImageRefused``."""
    first, slash, rest = text.partition("/")
    is_host = slash and ("." in first or ":" in first or first == "localhost")
    host, name = (first, rest) if is_host else (DOCKER_HUB, text)
    if host in ("docker.io", "index.docker.io"):
        host = DOCKER_HUB
    name, at, digest = name.partition("@")
    repository, colon, tag = name.rpartition(":") if ":" in name else (name, "", "")
    if not colon:
        repository = name
    if host == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    if not re.fullmatch(r"[a-z0-9]+((\.|__?|-+|/)[a-z0-9]+)*", repository):
        raise ImageRefused(f"{text}: {repository!r} names no repository; write it as docker://debian:12")
    return Reference(host, repository, digest if at else tag or "latest")


def pull(store: ImageStore, reference: str, *, progress: Progress, logins: Logins) -> str:
    """Import the image; its digest. ``logins`` are looked at when the registry asks. Raises ``RegistryError``,
    ``ImageRefused``."""
    where = parse_reference(reference)
    with httpx2.Client(timeout=_TIMEOUT_S, follow_redirects=True) as client:
        registry = _Registry(client, where, logins)
        try:
            first = registry.manifest(where.tag)
            digest = where.tag if where.tag.startswith("sha256:") else digest_of(first)
            checked(first, digest, reference)
            manifest = choose_manifest(
                (Descriptor(digest),),
                reference,
                lambda wanted: first if wanted == digest else checked(registry.manifest(wanted), wanted, reference),
            )
            return import_manifest(
                store,
                manifest,
                where=reference,
                document=registry.document,
                blob=registry.blob,
                progress=progress,
            )
        except httpx2.HTTPError as error:
            raise RegistryError(
                f"{reference}: {where.host} cannot be reached or broke off: {error or type(error).__name__}; try again "
                "(what was fetched is kept), or import from a file"
            ) from error


class _Registry:
    def __init__(self, client: httpx2.Client, where: Reference, logins: Logins) -> None:
        self._client = client
        self._where = where
        self._logins = logins
        scheme = "http" if where.host.rpartition(":")[0] in _OWN_HOSTS or where.host in _OWN_HOSTS else "https"
        self._base = f"{scheme}://{where.host}/v2/{where.repository}"
        self._headers = {"Accept-Encoding": "identity"}

    def manifest(self, tag: str) -> bytes:
        return self._document(f"manifests/{tag}", {"Accept": _ACCEPT})

    def document(self, digest: str) -> bytes:
        return self._document(f"blobs/{digest}", {})

    def blob(self, descriptor: Descriptor) -> IO[bytes]:
        return io.BufferedReader(_Body(self._get(f"blobs/{descriptor.digest}", {})))

    def _document(self, path: str, headers: dict[str, str]) -> bytes:
        with io.BufferedReader(_Body(self._get(path, headers))) as body:
            data = body.read(MAX_DOCUMENT_BYTES + 1)
        if len(data) > MAX_DOCUMENT_BYTES:
            raise ImageRefused(f"{self._base}/{path}: more than {MAX_DOCUMENT_BYTES:,} bytes")
        return data

    def _get(self, path: str, headers: dict[str, str]) -> httpx2.Response:
        """An answer whose body is still to be read."""
        response = self._send(path, headers)
        if response.status_code == 401:  # also of a token that has grown old
            challenges = response.headers.get_list("WWW-Authenticate")
            response.close()
            self._headers["Authorization"] = self._authorization(challenges)
            response = self._send(path, headers)
        if response.status_code != 200:
            response.close()
            hints = {404: "it has no such image", 429: "it was asked too often: try later"}
            hint = hints.get(response.status_code, "try later")
            if response.status_code in (401, 403):
                hint = f"it lets nobody have this without a login: {self._logins.why_none(self._where.host)}"
            raise RegistryError(f"{self._base}/{path}: status {response.status_code}: {hint}; or import from a file")
        return response

    def _send(self, path: str, headers: dict[str, str]) -> httpx2.Response:
        request = self._client.build_request("GET", f"{self._base}/{path}", headers={**self._headers, **headers})
        return self._client.send(request, stream=True)

    def _authorization(self, challenges: list[str]) -> str:
        """What the registry asks for, in the first way that it names and is known here."""
        login = self._logins.of(self._where.host)
        for challenge in challenges:
            kind, _, rest = challenge.partition(" ")
            fields = dict(_CHALLENGE.findall(rest))
            realm = fields.pop("realm", "")
            if kind.lower() == "basic":
                if login is None:
                    raise RegistryError(f"{self._base}: asks for a password: {self._logins.why_none(self._where.host)}")
                return login.header
            if kind.lower() == "bearer" and realm.startswith(("https://", f"{self._base.partition('/v2/')[0]}/")):
                return f"Bearer {self._token(realm, fields, login)}"
        kinds = ", ".join(challenge.partition(" ")[0] for challenge in challenges) or "none"
        raise RegistryError(f"{self._base}: asks for a login of kind {kinds!r}; import from a file")

    def _token(self, realm: str, fields: dict[str, str], login: Login | None) -> str:
        fields.setdefault("scope", f"repository:{self._where.repository}:pull")
        response = self._client.get(
            realm, params=fields, headers={} if login is None else {"Authorization": login.header}
        )
        if response.status_code != 200:
            why = self._logins.why_none(self._where.host)
            raise RegistryError(f"{realm}: gives no token (status {response.status_code}): {why}")
        try:
            token = msgspec.json.decode(response.content, type=_Token)
        except msgspec.DecodeError as error:
            raise RegistryError(f"{realm}: gives no token: {error}") from error
        return token.token or token.access_token


class _Body(io.RawIOBase):
    """A response's body as a stream; closing it closes the response."""

    def __init__(self, response: httpx2.Response) -> None:
        super().__init__()
        self._response = response
        self._pieces: Iterator[bytes] = response.iter_raw()
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        self._response.close()
        super().close()
