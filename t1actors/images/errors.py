"""Why an image cannot be had. One hierarchy; the classes say who can do something about it.

``ImageRefused`` blames the bytes that were to be imported, ``ImageMissing`` says how to import what is not there,
``RegistryError`` is the registry's or the network's doing, and ``BuildFailed`` is the task's own fault: the same task fails
the same way again.
"""

from __future__ import annotations


class ImageError(Exception):
    """Base of all errors of this folder. The message names the image, the place and what to do next."""


class ImageRefused(ImageError):
    """What was to be imported is hostile, damaged or of a kind that is not supported: says which entry of it."""


class ImageMissing(ImageError):
    """There is no such image in the store: says how to import it."""


class StoreError(ImageError):
    """The store's own files are not what they must be, or it is in use."""


class RegistryError(ImageError):
    """A registry cannot be reached or does not answer as it should."""


class BuildFailed(ImageError):
    """A task's environment does not build, by its own doing: ``step`` is the instruction, ``output`` the end of what it
    printed."""

    def __init__(self, message: str, *, step: str = "", output: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.output = output
