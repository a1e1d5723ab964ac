"""What the daemon is asked to make: the hardening of a container in one place. Pure.

No network; no capability beyond those of ``shim.init`` and one more, which the shells do not have; no new privileges;
memory and processes limited; nothing of the host mounted but the sandbox's own control files; no log.
"""

from __future__ import annotations

from typing import Any

from t1actors.sandbox.wire import Create, key_of

LABEL_ROOT = "t1actors.root"
LABEL_NAME = "t1actors.name"
"""The labels of every container: whose it is, and which sandbox."""
LABEL_STANDS_IN = "t1actors.stands-in-for"
"""The label of an image, and so of its containers, that was built on another base than the ones its Dockerfile names."""

_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT",
    "SETFCAP",
    "AUDIT_WRITE",  # the first process alone keeps it: who has less can't trace it
)  # fmt: skip
_WAIT_FOR_THE_SHIM = "exec </dev/.t1/alive; while read -r _; do :; done"


def container_recipe(prefix: str, name: str, directory: str, image: str, order: Create) -> dict[str, Any]:
    """The body of a request to create the container of the sandbox ``name``, whose directory on the host is ``directory``."""
    memory_bytes = order.memory_mb << 20
    return {
        "Image": image,
        # bash reaps what is left to it and, as the first process, is beyond the reach of signals from inside.
        "Entrypoint": ["bash", "--noprofile", "--norc", "-c", _WAIT_FOR_THE_SHIM],
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Healthcheck": {"Test": ["NONE"]},
        "NetworkDisabled": True,
        "Labels": {LABEL_ROOT: prefix, LABEL_NAME: name, "t1actors.key": key_of(name)},
        "HostConfig": {
            "NetworkMode": "none",
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "Init": False,
            "CapDrop": ["ALL"],
            "CapAdd": list(_CAPABILITIES),
            "SecurityOpt": ["no-new-privileges"],
            "Memory": memory_bytes,
            "MemorySwap": memory_bytes,
            "PidsLimit": order.processes + 1,  # one more for the first process
            "ShmSize": max(1, min(64, order.memory_mb // 2)) << 20,
            "LogConfig": {"Type": "none"},
            "RestartPolicy": {"Name": "no"},
            "Ulimits": [{"Name": "core", "Soft": 1, "Hard": 1}],
            "Mounts": [
                {"Type": "bind", "Source": f"{directory}/control", "Target": "/dev/.t1", "ReadOnly": True},
            ],
        },
    }
