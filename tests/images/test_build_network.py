"""Builds whose RUN instructions have a network: what they reach, what is kept, and that it is said."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from t1actors.cli.main import main
from t1actors.images.errors import BuildFailed
from t1actors.images.steps import BuildNetwork
from t1actors.images.store import ImageStore
from tests.images.test_build import Builder
from tests.sandbox.remote import PORT, THERE, remote_or_skipped

pytestmark = pytest.mark.usefixtures("host_makes_sandboxes")
FETCH = f"exec 3<>/dev/tcp/{THERE}/{PORT}; echo 'GET / HTTP/1.0' >&3; echo >&3; cat <&3 >/fetched"
DOCKERFILE = f'FROM little:1\nRUN ["bash", "-c", "{FETCH}"]\nRUN echo ${{http_proxy:-none}} >/proxy\n'
WARNING = "the image was built with a network: building it again may give another"


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Another host answers at ``THERE``."""
    with remote_or_skipped(str(tmp_path_factory.mktemp("served"))):
        yield


@pytest.fixture
def builder(store: ImageStore, little: str, tmp_path: Path) -> Builder:
    (tmp_path / "files").mkdir()
    return Builder(store, tmp_path / "files")


def test_a_run_fetches_only_where_the_build_allows_it_and_the_image_says_so(
    builder: Builder, remote: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BuildFailed, match=r"Network is unreachable(?s:.*)|allow one \(sandbox.build_network"):
        builder(DOCKERFILE)
    built = builder(DOCKERFILE, network=BuildNetwork(on=True))
    assert (builder.read(built, "/fetched") or "").startswith("HTTP/1.0 200")
    assert builder.store.base_image(built.digest).warnings == (WARNING,)
    assert main(["image", "list", f"--store={builder.store.root}"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.endswith("built with a network: building it again may give another") for line in listed] == [
        True, False, False,
    ]  # fmt: skip


def test_what_was_fetched_once_is_kept_for_builds_without_a_network(builder: Builder, remote: None) -> None:
    first = builder(DOCKERFILE, network=BuildNetwork(on=True))
    again = builder(DOCKERFILE)
    assert (again.digest, again.ran) == (first.digest, 0)


def test_refused_addresses_are_refused_and_the_message_says_it(builder: Builder, remote: None) -> None:
    network = BuildNetwork(on=True, refused_addresses=(f"{THERE}/32",))
    with pytest.raises(BuildFailed, match=r"private addresses and this host.s own are refused"):
        builder(DOCKERFILE, network=network)


def test_a_proxy_is_told_to_run_and_decides_no_key(builder: Builder) -> None:
    """It is not in the image either."""
    text = "FROM little:1\nRUN echo ${http_proxy:-none} >/proxy\n"
    proxied = builder(text, network=BuildNetwork(variables=(("http_proxy", "http://proxy:3128"),)))
    assert builder.read(proxied, "/proxy") == "http://proxy:3128\n"
    assert dict(proxied.image.env).keys() == {"PATH"}
    assert builder(text).ran == 0
