"""Clearing the store away: what is named, was used lately or is needed by such stays."""

import os
from pathlib import Path

import pytest

from t1actors.images.prune import DAY_S, prune
from t1actors.images.sources import import_source
from t1actors.images.store import ImageStore
from tests.images.archives import config_of, docker_save, layer

SHARED, OWN, OTHER = layer("shared"), layer("own"), layer("other")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1e9

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> ImageStore:
    return ImageStore(tmp_path / "images", clock_s=clock)


def image(store: ImageStore, tmp_path: Path, *layers: bytes) -> str:
    return import_source(store, docker_save(tmp_path / "saved.tar", list(layers), config_of(list(layers))))


def layers(store: ImageStore) -> int:
    return len(os.listdir(store.root / "layers"))


def test_what_has_a_name_stays_and_what_has_none_goes_after_its_days(
    store: ImageStore, clock: Clock, tmp_path: Path
) -> None:
    named, unnamed = image(store, tmp_path, SHARED, OWN), image(store, tmp_path, SHARED, OTHER)
    store.set_name("kept", named, source="test")
    clock.now_s += 6 * DAY_S
    assert prune(store, days=7, clock_s=clock).images == ()
    clock.now_s += 2 * DAY_S
    gone = prune(store, days=7, clock_s=clock)
    assert (gone.images, gone.layers) == ((unnamed,), 1)
    assert [listed.digest for listed in store.list()] == [named]
    assert layers(store) == 2
    assert store.forget("kept")
    assert prune(store, days=7, clock_s=clock).layers == 2
    assert layers(store) == 0


def test_using_an_image_begins_its_days_anew(store: ImageStore, clock: Clock, tmp_path: Path) -> None:
    digest = image(store, tmp_path, OWN)
    for _ in range(5):
        clock.now_s += 6 * DAY_S
        store.base_image(digest)
        assert prune(store, days=7, clock_s=clock).images == ()


def test_a_build_steps_layer_stays_as_long_as_the_step_is_used(store: ImageStore, clock: Clock, tmp_path: Path) -> None:
    digest = image(store, tmp_path, OWN)
    store.set_step("key", store.image(digest).layers[0])
    clock.now_s += 6 * DAY_S
    assert store.step("key") is not None
    clock.now_s += 6 * DAY_S
    assert prune(store, days=7, clock_s=clock).images == (digest,)
    assert layers(store) == 1
    clock.now_s += 6 * DAY_S
    prune(store, days=7, clock_s=clock)
    assert layers(store) == 0
    assert store.step("key") is None


def test_an_empty_store_and_one_that_is_not_there_are_nothing_to_prune(tmp_path: Path) -> None:
    assert prune(ImageStore(tmp_path / "none"), days=0).images == ()
    assert not (tmp_path / "none").exists()
