"""Images as other tools write them: layer tars, docker save tars, OCI layouts."""

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

from t1actors.images.image import this_architecture

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def entry(name: str, **fields) -> tarfile.TarInfo:
    """A tar header."""
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def layer(*entries: tuple[tarfile.TarInfo, bytes] | tarfile.TarInfo | str) -> bytes:
    """A layer tar. A plain string is an empty file; one that ends in / a directory."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for item in entries:
            if isinstance(item, str):
                kind = tarfile.DIRTYPE if item.endswith("/") else tarfile.REGTYPE
                item = entry(item, type=kind, mode=0o755)
            info, data = item if isinstance(item, tuple) else (item, b"")
            info.size = len(data) or info.size
            tar.addfile(info, io.BytesIO(data) if data else None)
    return out.getvalue()


def tar_of(directory: Path) -> bytes:
    """A root's layer, owners as they are."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in sorted(directory.iterdir()):
            tar.add(path, arcname=path.name)
    return out.getvalue()


def hexed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def config_of(layers: list[bytes], **config) -> bytes:
    """An image's configuration."""
    diff_ids = [f"sha256:{hexed(data)}" for data in layers]
    plain = {"architecture": this_architecture(), "os": "linux", "config": config}
    return json.dumps({**plain, "rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode()


def docker_save(file: Path, layers: list[bytes], config: bytes, tags: tuple[str, ...] = ("little:1",)) -> Path:
    """What ``docker save`` writes."""
    names = [f"{hexed(data)}/layer.tar" for data in layers]
    manifest = [{"Config": f"{hexed(config)}.json", "RepoTags": tags, "Layers": names}]
    files = {**dict(zip(names, layers, strict=True)), f"{hexed(config)}.json": config}
    files["manifest.json"] = json.dumps(manifest).encode()
    file.write_bytes(layer(*((entry(name, mode=0o644), data) for name, data in files.items())))
    return file


@dataclass
class Layout:
    """An OCI layout's files by name, and the digest of its manifest."""

    files: dict[str, bytes]
    manifest: str

    def write(self, directory: Path) -> Path:
        for name, data in self.files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(data)
        return directory

    def write_tar(self, file: Path) -> Path:
        file.write_bytes(layer(*((entry(name, mode=0o644), data) for name, data in self.files.items())))
        return file


def oci_layout(layers: list[bytes], config: bytes, *, other_platform: bool = False) -> Layout:
    """With gzipped layers; ``other_platform``: behind an index that has another machine's image too."""
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(data: bytes) -> dict[str, object]:
        files[f"blobs/sha256/{hexed(data)}"] = data
        return {"digest": f"sha256:{hexed(data)}", "size": len(data)}

    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": blob(config)}
    manifest["layers"] = [blob(gzip.compress(data, mtime=0)) for data in layers]
    described: dict[str, object] = {**blob(json.dumps(manifest).encode()), "mediaType": MANIFEST}
    digest = str(described["digest"])
    if other_platform:
        own = {**described, "platform": {"os": "linux", "architecture": this_architecture()}}
        other = {**blob(b"{}"), "mediaType": MANIFEST, "platform": {"os": "linux", "architecture": "s390x"}}
        index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [other, own]}).encode()
        described = {**blob(index), "mediaType": INDEX}
        digest = str(described["digest"])
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [described]}).encode()
    return Layout(files, digest)
