"""What is inside cannot reach what is outside: canaries, privileges, network, limits."""

import os
import socket
import stat
import sys
from pathlib import Path

import anyio
import pytest

import t1actors
from t1actors.sandbox.archive import archive_of_directory, archive_of_files
from t1actors.sandbox.backend import NamespaceBackend
from t1actors.sandbox.errors import SandboxDied
from t1actors.sandbox.interface import Layer, Limits, RunRequest, SandboxSpec
from tests.sandbox.conftest import Live

# Walks everything it can reach, in the tree and through /proc, and prints the paths whose name or content has the mark.
WALK = r"""
import os
mark = b"canary-" + b"5b1f"
here = os.stat("/")
roots = [f"/proc/{p}/{d}" for p in os.listdir("/proc") if p.isdigit() for d in ("root", "cwd", "fd")]
roots = ["/", "/dev/fd", *(r for r in roots if os.path.isdir(r) and not os.path.samestat(os.stat(r), here))]
seen = 0
for root in roots:
    for path, directories, files in os.walk(os.fsencode(root)):
        if path == b"/":
            directories[:] = [d for d in directories if d not in (b"proc", b"usr")]
        for name in directories + files:
            if mark in name:
                print("NAME", path, name)
        for name in files:
            full = os.path.join(path, name)
            try:
                if os.path.isfile(full) and os.path.getsize(full) < 1 << 20:
                    seen += 1
                    if mark in open(full, "rb").read():
                        print("CONTENT", full)
            except OSError:
                pass
for path in os.environ["PLACES"].split(":"):
    if os.path.lexists(path):
        print("PLACE", path)
print("walked", seen > 10)
"""

KINDS = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")


def test_canaries_in_every_place_of_the_host_are_out_of_reach(live, tmp_path):
    places = [tmp_path, Path("/tmp"), Path("/var/tmp"), Path("/opt"), Path("/dev/shm"), Path("/run")]
    planted = []
    for number, place in enumerate(places):
        path = place / f"canary-5b1f-{os.getpid()}-{number}"
        path.write_text("canary-5b1f")
        path.chmod(0o644)
        planted.append(path)
    repository = Path(t1actors.__file__).parents[1]
    outside = [
        *map(str, planted),
        str(repository),
        str(repository / "examples" / "tasks"),
        str(live.root),
        str(tmp_path),
    ]
    outside += [str(Path.home() / ".bashrc"), "/var/run/docker.sock", "/run/docker.sock"]
    outside += [live.daemon.socket] if live.daemon else []

    async def body(backend):
        other = Layer(archive=archive_of_files({"canary-5b1f": b"canary-5b1f"}), at="/app")
        await backend.create(SandboxSpec(key="other trial", layers=(other,)))
        await backend.run(
            "other trial", RunRequest(key="1", command="cp canary-5b1f /dev/shm; sleep 99 &", limit_s=5.0)
        )
        walker = Layer(archive=archive_of_files({"walk.py": WALK.encode()}), at="/walk", read_only=True)
        env = (("PLACES", ":".join(outside)),)
        await backend.create(SandboxSpec(key="walker", layers=(walker,), env=env))
        seen = await backend.run("walker", RunRequest(key="1", command="python3 -I -S /walk/walk.py", limit_s=60.0))
        # The walk itself works: it finds a canary of its own trial.
        own = "echo canary-5b1f >/app/own; python3 -I -S /walk/walk.py"
        control = await backend.run("walker", RunRequest(key="2", command=own, limit_s=60.0))
        return seen, control

    try:
        seen, control = live(body)
    finally:
        for path in planted:
            path.unlink()
    found = [line for line in seen.text.splitlines() if not line.startswith("walked")]
    # The home directory of root exists in the sandbox too, but it is another, empty one.
    assert [line for line in found if line != f"PLACE {Path.home()}/.bashrc"] == []
    assert seen.text.endswith("walked True\n")
    assert "CONTENT b'/app/own'" in control.text


KNOCK = """
import socket, sys
for address in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(address.replace("@", chr(0)))
        print("reached", address)
    except OSError:
        pass
print("canary" in open("/proc/net/unix").read())
"""


def test_no_socket_of_the_host_can_be_reached_by_its_path_or_by_its_name(live, tmp_path):
    path, name = tmp_path / "canary.sock", f"@canary-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
        one.bind(str(path))
        other.bind(name.replace("@", chr(0)))
        for listener in (one, other):
            listener.listen()
        places = [str(path), name, "/var/run/docker.sock", "/run/systemd/private", str(live.root / "one" / "sock")]
        places += [live.daemon.socket] if live.daemon else []
        knock = Layer(archive=archive_of_files({"knock.py": KNOCK.encode()}), at="/knock", read_only=True)
        command = f"python3 -I -S /knock/knock.py {' '.join(places)}"
        assert one_command(live, command, layers=(knock,)).text == "False\n"


LEADS_OUT = [
    "mount -t tmpfs none /mnt",
    "mount --bind /app /mnt",
    "mount -o remount,rw /usr",
    "umount /proc",
    "umount -l /usr",
    "unshare -U true",
    "unshare -m true",
    "unshare -r true",
    "chroot /nonexistent",
    "rm -rf /dev/.t1",
    "touch /dev/x",
    "echo '' >/dev/.t1/c",
    "su -s /bin/sh nobody -c 'echo id >/dev/.t1/in'",
    "mknod /app/disk b 254 0",
    "echo 1 >/proc/sys/vm/drop_caches",
    "echo x >/proc/sys/kernel/core_pattern",
    "echo b >/proc/sysrq-trigger",
    "echo 5 >/proc/sys/user/max_user_namespaces",
    "hostname other",
    "ip link add dummy0 type dummy",
    "cat /proc/kcore",
    "cat /proc/1/environ",
    "cat /proc/1/maps",
    "ls /proc/1/root/",
    "ls -l /proc/1/fd/",
    "nsenter -t 1 -m true",
    "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
    "python3 -c 'import socket; socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)'",
    "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'",
    "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 80), 2)'",
    'python3 -c \'import os; os.kill(1, 0); os.pidfd_open(1); open("/proc/1/mem", "rb")\'',
]


@pytest.mark.parametrize("command", LEADS_OUT)
def test_what_would_lead_out_is_refused(refusals, command):
    was_refused(refusals(command))


def was_refused(result):
    assert result.exit_code != 0, result.text
    assert not result.timed_out
    assert "command not found" not in result.text


@pytest.mark.parametrize(
    "command",
    [
        "touch /usr/x",
        "touch /etc/alternatives/x",
        "python3 -c 'import os; os.setgroups([0]); os.setresuid(70000, 70000, 70000)'",
    ],
)
def test_namespaces_show_the_hosts_programs_read_only_and_have_few_users(namespaces, command):
    was_refused(one_command(namespaces, command))


def one_command(live, command, *, limit_s=30.0, use_cgroups=True, **spec):
    async def body(backend):
        await backend.create(SandboxSpec(key="one", **spec))
        return await backend.run("one", RunRequest(key="1", command=command, limit_s=limit_s))

    return live(body, use_cgroups=use_cgroups)


@pytest.fixture(scope="module", params=["namespaces", "docker"])
def refusals(request, tmp_path_factory):
    """One sandbox for all of them: a backend is opened for each command, which also shows that sandboxes outlive it."""
    root = tmp_path_factory.mktemp("refusals") / "s"
    if request.param == "docker":
        backend = Live(root, request.getfixturevalue("docker_daemon")).backend()
    else:
        request.getfixturevalue("host_makes_sandboxes")
        backend = NamespaceBackend(root, name="refusals")

    async def run(command):
        async with backend.running():
            await backend.create(SandboxSpec(key="one"))
            return await backend.run("one", RunRequest(key=command, command=command, limit_s=20.0))

    async def kill():
        async with backend.running():
            await backend.kill("one")

    yield lambda command: anyio.run(run, command, backend="trio")
    anyio.run(kill, backend="trio")


@pytest.mark.parametrize(
    "command",
    [
        "chown 33:33 /app && stat -c %u:%g /app | grep -x 33:33",
        "su -s /bin/sh nobody -c 'id -u' | grep -x 65534",
        "python3 -c 'import socket as s; a = (\"127.0.0.1\", 80); l = s.create_server(a); s.create_connection(a)'",
        "mkfifo /tmp/p && ln -s x /tmp/l && mkdir -p /a/b && rm -rf /opt && echo x >/etc/hosts",
        "script -qc 'echo tty' /dev/null | grep tty",
        "echo x >/dev/stdout && echo x >/dev/null && head -c 3 /dev/urandom >/dev/shm/r && echo x | cat /dev/stdin",
        "python3 -c 'import multiprocessing as m; print(m.get_context(\"fork\").Pool(2).map(abs, [-1]))'",
        "for s in TERM INT HUP CHLD USR1 KILL; do kill -$s 1; done; sleep 0.2; echo alive",
        "cat /proc/cpuinfo /proc/meminfo >/dev/null && ps aux >/dev/null && df / >/dev/null",
        "gcc --version >/dev/null 2>&1 || true; perl -e 'print 1'",
    ],
)
def test_what_a_trial_needs_works(refusals, command):
    result = refusals(command)
    assert result.exit_code == 0, result.text


def test_processes_inside_have_few_capabilities_no_new_privileges_and_a_filter(refusals):
    assert_confined(refusals(STATUS).text)


STATUS = "cat /proc/self/status; ls /proc/self/fd | wc -w; cat /proc/self/uid_map; ls /proc | grep -c '^[0-9]'"


def assert_confined(text):
    """Of what ``STATUS`` says inside."""
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    docker = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}
    for kind in ("CapPrm", "CapEff", "CapBnd"):
        assert {bit for bit in range(64) if int(status[kind], 16) >> bit & 1} <= docker
    assert (status["CapInh"].strip("0"), status["CapAmb"].strip("0")) == ("", "")
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    *_, descriptors, _, processes = text.splitlines()
    assert int(descriptors) == 4  # input, output, errors, and the directory that ls reads
    assert int(processes) <= 10  # nothing of the host's process list


CALLS = """
import ctypes, errno, os
call = ctypes.CDLL(None, use_errno=True).syscall
def said(number, *arguments):
    return "went through" if call(number, *arguments) >= 0 else errno.errorcode[ctypes.get_errno()]
print(said(435, 0, 0), said(0x40000000 | 39) if os.uname().machine == "x86_64" else "EPERM")
"""


def test_clone3_is_not_there_and_calls_of_the_x32_kind_are_refused(refusals):
    result = refusals(f"python3 -I -S -c '{CALLS}'")
    assert result.text.split()[0] == "ENOSYS"
    assert result.text.split()[1] in ("EPERM", "ENOSYS")


def test_two_sandboxes_of_namespaces_have_different_user_ids_of_no_host_user(namespaces):
    async def body(backend):
        return [(await backend.create(SandboxSpec(key=key))).isolation for key in ("a", "b")]

    one, other = namespaces(body)
    firsts = {int(isolation.uid_map.split()[1]) for isolation in (one, other)}
    assert len(firsts) == 2
    assert min(firsts) >= 0x10000000


def test_every_namespace_that_is_recorded_is_really_another_one(live):
    command = "readlink " + " ".join(f"/proc/self/ns/{kind}" for kind in KINDS)

    async def body(backend):
        created = await backend.create(SandboxSpec(key="one"))
        return created, await backend.run("one", RunRequest(key="1", command=command, limit_s=20.0))

    created, result = live(body)
    inside = dict(zip(KINDS, result.text.split(), strict=True))
    others = {kind for kind in KINDS if inside[kind] != os.readlink(f"/proc/self/ns/{kind}")}
    assert others == set(created.isolation.namespaces)
    assert others >= {"mnt", "pid", "net", "ipc", "uts", "cgroup"}
    warned = any("user 0" in warning for warning in created.isolation.warnings)
    assert warned == ("user" not in others)


def test_no_descriptor_of_the_host_is_open_in_any_process_inside(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        started = "sleep 99 & until grep -q sleep /proc/$!/comm; do sleep 0.01; done"
        await backend.run("one", RunRequest(key="1", command=started, limit_s=30.0))
        return [
            (name, os.readlink(path))
            for pid, name in live.processes()
            if name not in ("t1-shim", "t1-forkserver", "t1-attendant")
            for path in [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
        ]

    secret = os.open(sys.executable, os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        found = live(body)
    finally:
        os.close(secret)
    assert {name for name, _ in found} >= {"bash", "sleep"}
    allowed = ("pipe:", "socket:", "/dev/null", "/dev/.t1/", "/null", "anon_inode")
    assert [link for _, link in found if not link.startswith(allowed)] == []


def test_memory_beyond_the_limit_kills_the_hog_and_the_trial_goes_on(live):
    hog_memory(live, use_cgroups=True)


MEMFD = "import os; fd = os.memfd_create('x'); [os.write(fd, bytes(1 << 20)) for _ in range(900)]"


def test_memory_that_is_a_file_without_a_name_counts(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="one", limits=Limits(memory_mb=128)))
        try:
            command = f'python3 -c "{MEMFD}"'
            result = await backend.run("one", RunRequest(key="1", command=command, limit_s=30.0))
        except SandboxDied as error:  # the kernel may choose any process of the group
            return error.cause
        return result.limit_hit

    assert live(body) == "memory"


def test_shared_memory_has_a_limit_of_its_own(live):
    fill = "head -c 900M /dev/zero >/dev/shm/x; stat -c %s /dev/shm/x"
    result = one_command(live, fill, limits=Limits(memory_mb=256))
    assert "No space left" in result.text
    assert int(result.text.split()[-1]) <= 64 << 20


def test_without_control_groups_a_watchdog_holds_the_memory_limit(namespaces):
    hog_memory(namespaces, use_cgroups=False)


def hog_memory(live, *, use_cgroups):
    hog = 'python3 -c "x = bytearray(900 << 20); import time; time.sleep(9)"'

    async def body(backend):
        created = await backend.create(SandboxSpec(key="one", limits=Limits(memory_mb=128)))
        hogged = await backend.run("one", RunRequest(key="1", command=hog, limit_s=30.0))
        after = await backend.run("one", RunRequest(key="2", command="echo after", limit_s=30.0))
        return created, hogged, after

    created, hogged, after = live(body, use_cgroups=use_cgroups)
    assert hogged.limit_hit == "memory"
    assert hogged.exit_code == 137
    assert (after.text, after.limit_hit) == ("after\n", "")
    kind = "cgroup" if use_cgroups else "watchdog"
    assert any(limit.startswith(f"memory=128MB {kind}") for limit in created.isolation.limits)
    assert any("memory" in warning for warning in created.isolation.warnings) == (not use_cgroups)


def test_processes_are_limited_over_all_users_and_the_trial_goes_on(live):
    start_too_many(live, use_cgroups=True)


def test_without_control_groups_an_rlimit_holds_the_number_of_processes(namespaces):
    start_too_many(namespaces, use_cgroups=False)


def test_without_control_groups_processes_of_all_users_count_together(namespaces):
    many = "i=0; while [ $i -lt 15 ]; do sleep 50 & i=$((i+1)); done"
    each = [f"su -s /bin/sh {user} -c '{many}' 2>/dev/null" for user in ("nobody", "daemon", "bin")]
    command = "; ".join([*each, "set -- /proc/[0-9]*; echo $#"])
    result = one_command(namespaces, command, limits=Limits(processes=20), use_cgroups=False)
    assert int(result.text) <= 21


def start_too_many(live, *, use_cgroups):
    command = f"python3 -c '{BOMB}'"

    async def body(backend):
        await backend.create(SandboxSpec(key="one", limits=Limits(processes=40)))
        bombed = await backend.run("one", RunRequest(key="1", command=command, limit_s=30.0))
        after = await backend.run("one", RunRequest(key="2", command="echo after", limit_s=30.0))
        return bombed, after

    bombed, after = live(body, use_cgroups=use_cgroups)
    as_root, as_other = map(int, bombed.text.split())
    assert 30 <= as_root <= 39
    assert as_other == 0
    assert after.text == "after\n"


BOMB = """
import os, subprocess
for user in (0, 1000):
    count = 0
    try:
        while count < 100:
            subprocess.Popen(["sleep", "50"], user=user, cwd="/")
            count += 1
    except OSError:
        pass
    print(count)
"""


@pytest.mark.parametrize(
    ("command", "limit", "limit_s"),
    [
        ("head -c 100M /dev/zero >/app/big", "disk", 20.0),
        ("mkdir $(seq 3000)", "disk", 20.0),
        ("sleep 9", "time", 0.3),
        ("yes | head -c 100000", "output", 20.0),
        ("for i in $(seq 30); do sleep 50 & done", "processes", 1.5),  # the shell tries again and again
        ("echo fine", "", 20.0),
    ],
)
def test_a_limit_that_bit_is_named(live, command, limit, limit_s):
    async def body(backend):
        limits = Limits(disk_mb=8, processes=20, output_bytes=1000)
        await backend.create(SandboxSpec(key="one", limits=limits))
        return await backend.run("one", RunRequest(key="1", command=command, limit_s=limit_s))

    assert limit in live(body).limit_hit.split(",")


def test_the_disk_limit_of_namespaces_holds_for_every_place_that_can_be_written(namespaces):
    places = "/app /tmp /root /dev/shm /run /etc /var/tmp /home"
    fill = f"for d in {places}; do head -c 200M /dev/zero >$d/x 2>/dev/null; done"
    command = f"{fill}; du -c {places} 2>/dev/null | tail -1 | cut -f1"
    result = one_command(namespaces, command, limits=Limits(disk_mb=16, memory_mb=128))
    assert int(result.text.split()[-1]) << 10 <= (16 + 64 + 1) << 20


def test_a_watched_disk_that_stays_full_ends_all_processes_and_the_next_command_can_make_room(docker):
    async def body(backend):
        created = await backend.create(SandboxSpec(key="one", limits=Limits(disk_mb=8)))
        results = []
        for command in ("head -c 20M /dev/zero >big; sleep 60", "rm big", "sleep 1; echo still here"):
            request = RunRequest(key=command, command=command, limit_s=20.0)
            results.append(await backend.run("one", request))
        return created.isolation, results

    isolation, (filled, removed, after) = docker(body)
    assert "disk=8MB watchdog" in isolation.limits
    assert (filled.exit_code, filled.limit_hit, filled.shell_restarted) == (137, "disk", True)
    assert (removed.exit_code, removed.limit_hit) == (0, "")
    assert (after.text, after.exit_code) == ("still here\n", 0)


def test_a_layer_cannot_redirect_what_is_mounted_on_the_root(live, tmp_path):
    # The first layer turns /usr, /proc and /dev into links to a directory of the host; nothing may follow them.
    tree = tmp_path / "tree"
    tree.mkdir()
    target = tmp_path / "host"
    target.mkdir()
    (tree / "tests").symlink_to(target)
    planted = Layer(archive=archive_of_directory(tree), at="/")
    tests = Layer(archive=archive_of_files({"t": b"tests"}), at="/tests", read_only=True)

    async def body(backend):
        await backend.create(SandboxSpec(key="one", layers=(planted, tests)))
        return await backend.run("one", RunRequest(key="1", command="cat /tests/t; stat -c %F /tests", limit_s=5.0))

    assert live(body).text == "testsdirectory\n"
    assert list(target.iterdir()) == []


def test_setuid_programs_give_nothing(one):
    command = "cp /usr/bin/id /app/id && chmod 4755 /app/id && su -s /bin/sh nobody -c '/app/id -u'"
    (result,) = one([command])
    assert result.text == "65534\n"


def test_the_sandboxes_directory_is_for_its_owner_alone(live):
    async def body(backend):
        await backend.create(SandboxSpec(key="one"))
        return [stat.S_IMODE(path.stat().st_mode) for path in (live.root, live.root / "one")]

    assert live(body) == [0o700, 0o700]
