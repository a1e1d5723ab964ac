"""The seccomp program: a deny-list on top of namespaces and dropped capabilities.

It takes away what a kernel bug would be reached through (mounting, io_uring, bpf, keyrings, user faults), what would
open a fresh set of capabilities (new user namespaces, by ``clone`` flags too), and socket families that cross into the
host although the network namespace is empty (vsock, packet). ``clone3`` answers ENOSYS because its flags lie in memory
where a filter cannot look; every C library then uses ``clone``.
"""

from __future__ import annotations

import errno
import os
import struct

from t1actors.sandbox.shim.linux import CLONE_ANY_NAMESPACE, StepFailed

_ALLOWED_SOCKET_FAMILIES = (1, 2, 10, 16)  # UNIX, INET, INET6, NETLINK

# Numbers that all architectures share: pidfd_getfd, io_uring, the new mount calls.
_COMMON_DENIED = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442)
_CLONE3 = 435

_X86_64 = 0xC000003E
_X86_64_DENIED = (
    165, 166, 155, 272, 308,  # mount, umount2, pivot_root, unshare, setns
    321, 298, 323, 300,  # bpf, perf_event_open, userfaultfd, fanotify_init
    246, 320, 175, 313, 176, 174,  # kexec_load, kexec_file_load, init_module, finit_module, delete_module, create_module
    248, 249, 250,  # add_key, request_key, keyctl
    153, 169, 167, 168, 163, 179,  # vhangup, reboot, swapon, swapoff, acct, quotactl
    173, 172, 103,  # ioperm, iopl, syslog
    304, 303, 212, 180,  # open_by_handle_at, name_to_handle_at, lookup_dcookie, nfsservctl
)  # fmt: skip
_AARCH64 = 0xC00000B7
_AARCH64_DENIED = (
    40, 39, 41, 97, 268,  # mount, umount2, pivot_root, unshare, setns
    280, 241, 282, 262,  # bpf, perf_event_open, userfaultfd, fanotify_init
    104, 294, 105, 273, 106,  # kexec_load, kexec_file_load, init_module, finit_module, delete_module
    217, 218, 219,  # add_key, request_key, keyctl
    58, 142, 224, 225, 89, 60,  # vhangup, reboot, swapon, swapoff, acct, quotactl
    116, 265, 264, 18, 42,  # syslog, open_by_handle_at, name_to_handle_at, lookup_dcookie, nfsservctl
)  # fmt: skip

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW = 0x7FFF0000
_FAIL = 0x00050000


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def build_program(*, deny_memfd: bool) -> bytes:
    """The program for this machine. ``deny_memfd``: without a control group nothing else would bound that memory.

    Raises:
        StepFailed: an architecture whose system call numbers are not known here.
    """
    match os.uname().machine:
        case "x86_64":
            arch, denied, clone, socket_number, memfd = _X86_64, _X86_64_DENIED, 56, 41, 319
        case "aarch64":
            arch, denied, clone, socket_number, memfd = _AARCH64, _AARCH64_DENIED, 220, 198, 279
        case machine:
            raise StepFailed(f"choosing a seccomp program for {machine}", errno.ENOSYS)
    ops = [
        _op(_LOAD, _ARCH_AT),
        _op(_EQUAL, arch, if_true=1),
        _op(_RETURN, _FAIL | errno.ENOSYS),
        _op(_LOAD, _NUMBER_AT),
        _op(_AT_LEAST, 0x40000000, if_false=1),  # the x32 calls
        _op(_RETURN, _FAIL | errno.ENOSYS),
        _op(_EQUAL, _CLONE3, if_false=1),
        _op(_RETURN, _FAIL | errno.ENOSYS),
    ]
    for number in (*denied, *_COMMON_DENIED, *((memfd,) if deny_memfd else ())):
        ops += [_op(_EQUAL, number, if_false=1), _op(_RETURN, _FAIL | errno.EPERM)]
    ops += [
        _op(_EQUAL, clone, if_false=4),
        _op(_LOAD, _FIRST_ARGUMENT_AT),
        _op(_ANY_BIT, CLONE_ANY_NAMESPACE, if_false=1),
        _op(_RETURN, _FAIL | errno.EPERM),
        _op(_RETURN, _ALLOW),
    ]
    families = len(_ALLOWED_SOCKET_FAMILIES)
    ops += [_op(_EQUAL, socket_number, if_false=families + 2), _op(_LOAD, _FIRST_ARGUMENT_AT)]
    ops += [_op(_EQUAL, family, if_true=families - i) for i, family in enumerate(_ALLOWED_SOCKET_FAMILIES)]
    ops += [_op(_RETURN, _FAIL | errno.EAFNOSUPPORT), _op(_RETURN, _ALLOW)]
    return b"".join(ops)
