"""The fork server of the Docker backend: the same loop as that of namespaces, with shims that own containers.

python -I -S -m t1actors.sandbox.docker.forkserver ROOT PREFIX SOCKET IMAGE
"""

from __future__ import annotations

import sys

from t1actors.sandbox.docker.machine import Docker
from t1actors.sandbox.shim.forkserver import main
from t1actors.sandbox.shim.machine import Kind
from t1actors.sandbox.shim.seccomp import build_program


def _docker(root_directory: str, prefix: str, socket: str, image: str) -> Kind:
    return Docker(root_directory, prefix, socket, image, build_program(deny_memfd=False))


if __name__ == "__main__":
    main(sys.argv[1], lambda: _docker(*sys.argv[1:5]))
