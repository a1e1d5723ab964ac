"""A Docker daemon of the tests' own, and a base image made of this host's packages: no registry, nothing of another daemon.

Started once a session where ``dockerd`` is installed, torn down completely: no process, mount or directory is left.
"""

import contextlib
import importlib.util
import io
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

IMAGE = "t1-tests-base"
INSTALL = "apt-get install docker.io"
PACKAGES = (
    "base-files", "base-passwd", "bash", "bsdextrautils", "bsdutils", "coreutils", "curl", "dash", "diffutils", "findutils",
    "git", "grep", "gzip", "hostname", "iproute2", "login", "make", "mawk", "mount", "passwd", "perl-base", "procps",
    "python3", "sed", "tar", "util-linux", "util-linux-extra",
)  # fmt: skip
COMPILER = ("binutils", "cpp", "gcc", "libc6-dev")
"""Not in the base: they make it twice as large."""
LEFT_OUT = (
    "/usr/share/doc",
    "/usr/share/man",
    "/usr/share/locale",
    "/usr/share/info",
    "/usr/share/lintian",
    "/etc/pam.d/",
    "/.",
)
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
PAM = (
    b"auth sufficient pam_rootok.so\nauth required pam_deny.so\n"
    b"account required pam_permit.so\npassword required pam_deny.so\nsession required pam_permit.so\n"
)
PATIENCE_S = 60.0
REMAPPED_USER = "games"
FIRST_REMAPPED_ID = 700_000


class Daemon:
    """``socket`` is where it listens, ``image`` a base with bash, coreutils and Python; ``bridge`` the device that its
    containers' network hangs on, if they are to have one."""

    def __init__(self, folder: str, *, remaps_users: bool = False, bridge: str = "none"):
        self.folder = folder
        self._bridge = bridge
        self._remaps_users = remaps_users
        self.socket = f"{folder}/sock"
        self.image = IMAGE
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises ``RuntimeError`` if it does not come up."""
        at = self.folder
        command = [
            "dockerd",
            "--storage-driver=overlay2",
            "--iptables=false",
            f"--bridge={self._bridge}",
            f"-Hunix://{self.socket}",
        ]
        command += [f"--data-root={at}/data", f"--exec-root={at}/exec", f"--pidfile={at}/pid"]
        if self._remaps_users:  # the host's own files of subordinate ids stay as they are
            Path(at, "ids").write_text(f"{REMAPPED_USER}:{FIRST_REMAPPED_ID}:65536\n")
            binds = " && ".join(f"mount --bind {at}/ids /etc/{name}" for name in ("subuid", "subgid"))
            remapped = " ".join([*command, f"--userns-remap={REMAPPED_USER}"])
            command = ["unshare", "-m", "sh", "-c", f"{binds} && exec {remapped}"]
        with open(f"{at}/log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        until_s = time.monotonic() + PATIENCE_S
        while self._process.poll() is None and time.monotonic() < until_s:
            with contextlib.suppress(RuntimeError):
                docker_of(f"unix://{self.socket}")("version")
                return
            time.sleep(0.1)
        raise RuntimeError(f"dockerd does not start: {Path(at, 'log').read_text(errors='replace')[-600:]}")

    def kill(self) -> None:
        """As a crash would: its containers go on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        for pid in self._others("containerd"):
            os.kill(pid, signal.SIGKILL)
        for name in ("pid", "exec/containerd/containerd.pid"):  # a zombie of that number would be taken for alive
            Path(self.folder, name).unlink(missing_ok=True)

    def stop(self) -> None:
        """With all that it started and mounted."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)
        for pid in self._others():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if line.split()[1].startswith(f"{self.folder}/"):
                subprocess.run(["umount", "-l", line.split()[1]], check=False)

    def _others(self, name: str = "") -> list[int]:
        """What runs for the daemon; only what has that name if there is one."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                ours = entry.name.isdigit() and f"{self.folder}/exec".encode() in (entry / "cmdline").read_bytes()
                if ours and name in ("", (entry / "comm").read_text().strip()):
                    found.append(int(entry.name))
        return found


@contextlib.contextmanager
def own_daemon(*, remaps_users: bool = False, bridge: str = "none") -> Iterator[Daemon]:
    """One that runs while the block is open, with the base image. Raises ``RuntimeError`` where none can be started."""
    with tempfile.TemporaryDirectory(prefix="t1-dockerd-") as folder:
        daemon = Daemon(folder, remaps_users=remaps_users, bridge=bridge)
        os.chmod(folder, 0o711)  # for users that are remapped
        data = f"{folder}/data"  # in memory: thousands of small files are made and deleted again
        os.mkdir(data)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4g,mode=711", "t1-dockerd", data], check=True)
        try:
            daemon.start()
            client = docker_of(f"unix://{daemon.socket}")
            client("import", "-", IMAGE, data=base_image())
            yield daemon
            if left := client("ps", "-aq").split():
                client("rm", "-f", *left)
        finally:
            daemon.stop()


def docker_of(socket: str):
    """Calls the Docker client: ``client("ps", "-q")`` gives its output."""

    def client(*arguments: str, data: bytes | None = None) -> str:
        done = subprocess.run(["docker", "-H", socket, *arguments], input=data, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"docker {' '.join(arguments)}: {done.stderr.decode()}")
        return done.stdout.decode()

    return client


def why_no_daemon() -> str:
    """Empty where one may be started; else what is missing. Asking costs nothing."""
    if os.geteuid() != 0:
        return "starting dockerd needs root"
    missing = [name for name in ("dockerd", "docker", "dpkg") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)}: {INSTALL}"
    return "" if importlib.util.find_spec("aiodocker") else "needs aiodocker: pip install -e '.[docker]'"


def base_image(packages: tuple[str, ...] = PACKAGES) -> bytes:
    """A root file system as a tar: what this host's packages and those they depend on consist of."""
    names = _with_dependencies(packages)
    listed = subprocess.run(["dpkg", "-L", *names], capture_output=True, text=True, check=True).stdout
    paths = sorted({_merged(path) for path in listed.splitlines() if path.startswith("/")} | _made_at_installation())
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in ("mnt", "opt", "srv"):  # made by no package, and in every Debian
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(directory)
        for path in paths:
            if not path.startswith(LEFT_OUT) and os.path.lexists(path):
                tar.add(path, path.strip("/"), recursive=False)
        # `su` from root and nothing else: there are no passwords in there.
        member = tarfile.TarInfo("etc/pam.d/other")
        member.size = len(PAM)
        tar.addfile(member, io.BytesIO(PAM))
    return stream.getvalue()


def _with_dependencies(names: tuple[str, ...]) -> list[str]:
    asked = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}\t${Pre-Depends}, ${Depends}\n"],
        capture_output=True,
        text=True,
        check=True,
    )
    depends = dict(line.split("\t") for line in asked.stdout.splitlines())
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found or name not in depends:
            continue
        found.add(name)
        choices = depends[name].replace("|", ",").split(",")
        waiting += [choice.split()[0].partition(":")[0] for choice in choices if choice.strip()]
    return sorted(found)


def _merged(path: str) -> str:
    """Packages may still say /bin/bash where /bin is a link to usr/bin."""
    top = path.split("/")[1]
    return f"/usr{path}" if top in MERGED and os.path.islink(f"/{top}") and path != f"/{top}" else path


def _made_at_installation() -> set[str]:
    made = {"/etc/passwd", "/etc/group", "/etc/ld.so.cache", "/usr/bin/sh", "/etc/alternatives"}
    alternatives = {f"{place}/{name}" for name in ("awk", "cc") for place in ("/usr/bin", "/etc/alternatives")}
    return made | alternatives | {f"/{name}" for name in MERGED}
