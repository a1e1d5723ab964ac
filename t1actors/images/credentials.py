"""Names and passwords of registries, as ``docker login`` leaves them: ``auths`` in a file such as ~/.docker/config.json.

Guarantees: what is secret is in no message, representation or record; the file is read only when a registry asks; a registry
gets its own login and no other's. Credential helpers and identity tokens are named, not used.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import TypeVar

import msgspec

from t1actors.images.errors import RegistryError

T = TypeVar("T")
DOCKER_HUB = "registry-1.docker.io"
_HUBS = ("docker.io", "index.docker.io", DOCKER_HUB)
DEFAULT_FILE = Path("~/.docker/config.json")


class _Entry(msgspec.Struct, frozen=True):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""


class _File(msgspec.Struct, frozen=True):
    auths: dict[str, _Entry] = {}
    credHelpers: dict[str, str] = {}
    credsStore: str = ""


class Login:
    """A name and a password; shows neither."""

    def __init__(self, user: str, password: str) -> None:
        self._pair = f"{user}:{password}".encode()

    @property
    def header(self) -> str:
        """The value of ``Authorization``."""
        return f"Basic {base64.b64encode(self._pair).decode()}"


class Logins:
    """Those of one file; with ``must_exist`` it has to be there."""

    def __init__(self, file: Path = DEFAULT_FILE, *, must_exist: bool = False) -> None:
        self.file = file.expanduser()
        self._must_exist = must_exist

    def of(self, host: str) -> Login | None:
        """That of the registry, None if there is none. Raises ``RegistryError``: the file, or the entry, cannot be used."""
        entry = _of_host(self._read().auths, host) or _Entry()
        if entry.auth:
            try:
                user, colon, password = base64.b64decode(entry.auth, validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                colon = user = password = ""
            if not colon:
                raise RegistryError(f"{self.file}: auths of {host}: `auth` is not base64 of NAME:PASSWORD")
            return Login(user, password.rstrip("\0"))
        return Login(entry.username, entry.password) if entry.username else None

    def why_none(self, host: str) -> str:
        """What to do about a login that is not there, or does not do."""
        found = self._read()
        entry = _of_host(found.auths, host)
        helper = _of_host(found.credHelpers, host) or found.credsStore
        if entry is not None and entry.identitytoken:
            reason = f"{self.file} has an identity token, which is not supported"
        elif helper and (entry is None or not (entry.auth or entry.username)):
            reason = f"{self.file} leaves it to the helper docker-credential-{helper}, which is not asked"
        elif entry is not None and (entry.auth or entry.username):
            return f"it does not take the login of {self.file}"
        else:
            reason = f"{self.file} has no login for {host}"
        return f"{reason}: give a file with its name and password under `auths` (--auth-file)"

    def _read(self) -> _File:
        try:
            return msgspec.json.decode(self.file.read_bytes(), type=_File)
        except FileNotFoundError:
            if self._must_exist:
                raise RegistryError(f"{self.file}: not there; `docker login` writes one") from None
            return _File()
        except OSError as error:
            raise RegistryError(f"{self.file}: cannot be read: {error.strerror}") from error
        except msgspec.DecodeError:  # its message may quote what is secret
            raise RegistryError(f"{self.file}: not a file of logins as `docker login` writes it") from None


def _of_host(entries: dict[str, T], host: str) -> T | None:
    for key, entry in entries.items():
        name = key.removeprefix("https://").removeprefix("http://").partition("/")
        if (name[0] == host or (host == DOCKER_HUB and name[0] in _HUBS)) and name[2].strip("/") in ("", "v1", "v2"):
            return entry
    return None
