"""A little root file system, and stores with it."""

from pathlib import Path

import pytest

from t1actors.images.sources import import_source
from t1actors.images.store import ImageStore
from tests.images.roots import make_root


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tests only read it."""
    return make_root(tmp_path_factory.mktemp("root") / "little")


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


@pytest.fixture
def little(store: ImageStore, root: Path) -> str:
    """The digest of ``little:1`` in ``store``."""
    digest = import_source(store, root)
    store.set_name("little:1", digest, source=str(root))
    return digest
