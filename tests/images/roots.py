"""Small root file systems for tests, made from programs of this host and the libraries that they need."""

import shutil
import subprocess
from pathlib import Path

PROGRAMS = (
    "bash", "sh", "ls", "cat", "id", "stat", "mkdir", "touch", "rm", "chmod", "chown", "mv", "cp", "ln", "sleep", "grep",
    "find", "env", "head", "sort", "test", "true", "false", "df", "sed", "readlink", "mount", "unshare",
)  # fmt: skip
PASSWD = "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\n"


def make_root(directory: Path, *, programs: tuple[str, ...] = PROGRAMS, merged: bool = True) -> Path:
    """A root with the named programs in /usr/bin (or, not ``merged``, in /bin), a few files of /etc and a home."""
    binaries = directory / ("usr/bin" if merged else "bin")
    for folder in (binaries, directory / "etc", directory / "home/user", directory / "tmp", directory / "root"):
        folder.mkdir(parents=True)
    if merged:
        for name in ("bin", "lib", "lib64"):
            (directory / "usr" / name).mkdir(exist_ok=True)
            (directory / name).symlink_to(f"usr/{name}")
    for name in programs:
        found = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
        assert found is not None, name
        shutil.copy(found, binaries / name)
        for library in libraries(found):
            target = directory / library.lstrip("/")
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(library, target)
    (directory / "tmp").chmod(0o1777)
    (directory / "etc/passwd").write_text(PASSWD)
    (directory / "etc/os-release").write_text("ID=little\n")
    shutil.chown(directory / "home/user", 1000, 1000)
    return directory


def libraries(program: str) -> list[str]:
    """The files that ``ldd`` names."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    words = (word for line in said.splitlines() for word in line.split())
    return sorted({word for word in words if word.startswith("/")})
