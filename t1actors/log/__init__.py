"""Journals, blobs and the merged view: append-only, one writer a journal. See ``docs/log-format.md``."""
