"""Sandboxes of an ordinary user, with subordinate ids and without: the contract that root's keep, and what differs.

The tests imported here run a second time, as such a user; what runs is a choice, one or two of each kind of promise.
"""

import os
from pathlib import Path

import anyio
import pytest

from t1actors.sandbox.errors import SandboxRefused
from t1actors.sandbox.interface import BaseImage, Limits, RunRequest, SandboxSpec
from t1actors.sandbox.shim.limits import hierarchies, remove_group
from t1actors.sandbox.shim.users import SHARED
from tests.ordinary_user import RANGE, OrdinaryUser, why_no_ordinary_user
from tests.sandbox.conftest import LiveAsAUser
from tests.sandbox.test_backend import (
    test_a_creation_cancelled_at_any_moment_leaves_nothing as a_creation_cancelled_at_any_moment_leaves_nothing,
)
from tests.sandbox.test_backend import (  # noqa: F401
    test_a_sandbox_lives_its_whole_life_and_leaves_nothing,
    test_a_sandbox_that_dies_under_its_caller_says_so_and_can_still_be_sealed,
    test_a_tree_3000_deep_and_terabytes_of_holes_are_sealed_and_gone_at_once,
    test_a_writable_layer_belongs_to_the_trial_and_a_read_only_one_does_not,
    test_an_agents_sealed_tree_is_laid_read_only_into_a_grader,
    test_equal_work_seals_to_equal_bytes_and_restores_to_the_same_tree,
    test_everything_inside_dies_with_a_shim_that_is_killed_and_its_place_is_cleared,
    test_files_are_read_without_following_links_and_only_when_regular_and_small,
    test_five_sandboxes_survive_the_kill_of_their_pool_and_are_found_by_their_keys,
    test_seal_kills_everything_freezes_the_tree_and_is_idempotent,
    test_the_reaper_clears_away_what_dead_shims_left,
)
from tests.sandbox.test_isolation import (
    KINDS,
    LEADS_OUT,
    STATUS,
    assert_confined,
    test_a_layer_cannot_redirect_what_is_mounted_on_the_root,  # noqa: F401
    test_canaries_in_every_place_of_the_host_are_out_of_reach,  # noqa: F401
    test_every_namespace_that_is_recorded_is_really_another_one,  # noqa: F401
    test_the_disk_limit_of_namespaces_holds_for_every_place_that_can_be_written,  # noqa: F401
    test_without_control_groups_a_watchdog_holds_the_memory_limit,  # noqa: F401
    test_without_control_groups_an_rlimit_holds_the_number_of_processes,  # noqa: F401
    test_without_control_groups_processes_of_all_users_count_together,  # noqa: F401
)
from tests.sandbox.test_shell import test_the_time_limit_kills_the_whole_tree_and_the_trial_goes_on  # noqa: F401


@pytest.fixture
def live(user):
    return LiveAsAUser(user)


@pytest.fixture
def namespaces(live):
    return live


@pytest.fixture
def tmp_path(user):
    """pytest's own is closed to others."""
    return user.given


def commands_of(live, commands, **spec):
    async def body(backend):
        created = await backend.create(SandboxSpec(key="one", **spec))
        results = []
        for number, command in enumerate(commands):
            results.append(await backend.run("one", RunRequest(key=str(number), command=command, limit_s=20.0)))
        return created.isolation, results

    return live(body)


@pytest.mark.parametrize("after_s", [0.003, 0.02, 0.1])
def test_a_creation_cancelled_at_any_moment_leaves_nothing(live, after_s):
    a_creation_cancelled_at_any_moment_leaves_nothing(live, after_s)


def test_what_would_lead_out_is_refused(live):
    _, results = commands_of(live, LEADS_OUT)
    done = [command for command, result in zip(LEADS_OUT, results, strict=True) if result.exit_code == 0]
    assert done == []
    assert [result.text for result in results if "command not found" in result.text or result.timed_out] == []


def test_processes_inside_have_few_capabilities_no_new_privileges_and_a_filter(live):
    _, (result,) = commands_of(live, [STATUS])
    assert_confined(result.text)


def test_settings_of_the_kernel_are_closed_to_root_inside_and_devices_work(live):
    """With one uid root inside is the user who owns the namespaces; that gives it nothing."""
    writes = "for f in $(find /proc/sys -type f); do (cat $f >$f) 2>/dev/null && echo open $f; done; true"
    works = "echo x >/dev/null && head -c 3 /dev/urandom >/dev/shm/r && script -qc 'echo tty' /dev/null | grep tty"
    _, (written, devices, ping) = commands_of(
        live, [writes, works, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start"]
    )
    assert written.text == ""
    assert (devices.exit_code, ping.text) == (0, "0\n")


def test_which_users_are_inside_is_recorded_and_true(live):
    isolation, (mapped, other) = commands_of(live, ["cat /proc/self/uid_map; id -u", "su -s /bin/sh nobody -c 'id -u'"])
    one = live.user.way == "one uid"
    first = live.user.uid if one else live.user.first
    assert isolation.uid_map == f"0 {first} {1 if one else RANGE}"
    assert mapped.text.split()[2:] == ["1" if one else str(RANGE), "0"]
    assert (other.text == "65534\n") != one
    assert isolation.namespaces == KINDS
    text = " ".join(isolation.warnings)
    assert ("one user id only" in text, SHARED in text) == (one, not one)
    assert "/etc/subuid gives" in text


def test_each_has_ids_of_its_own_as_far_as_they_go_and_who_shares_is_told():
    if reason := why_no_ordinary_user("subuid"):
        pytest.skip(reason)
    user = OrdinaryUser("subuid", ranges=3)

    async def body(backend):
        return [(await backend.create(SandboxSpec(key=key))).isolation for key in "abcd"]

    try:
        made = LiveAsAUser(user)(body)
    finally:
        user.remove()
    firsts = [int(isolation.uid_map.split()[1]) for isolation in made]
    assert firsts == [user.first, user.first + RANGE, user.first + 2 * RANGE, user.first + 2 * RANGE]
    assert [SHARED in isolation.warnings for isolation in made] == [False, False, True, True]


def test_who_shares_ids_has_processes_of_its_own(live):
    """The limit counts those of one sandbox, whoever else has the same ids."""

    async def body(backend):
        limits = Limits(processes=20)
        for key in ("one", "two"):
            await backend.create(SandboxSpec(key=key, limits=limits))
        for key in ("one", "two"):
            request = RunRequest(key="1", command="for i in $(seq 12); do sleep 50 & done; echo $?", limit_s=20.0)
            assert (await backend.run(key, request)).text == "0\n"

    live(body)


def test_an_image_is_refused_by_name_as_its_owners_cannot_be_mapped(live):
    class Images:
        def base_image(self, digest):
            return BaseImage(digest=digest, layers=("/nonexistent",))

    async def main():
        from t1actors.sandbox.backend import NamespaceBackend

        backend = NamespaceBackend(live.root, name="test", images=Images())
        async with backend.running():
            with pytest.raises(SandboxRefused, match="only root of the host can give an image's files"):
                await backend.create(SandboxSpec(key="one", base="sha256:1"))
            return os.listdir(live.root)

    assert live.call(lambda: anyio.run(main)) == []


def test_control_groups_that_somebody_gave_the_user_hold_its_sandboxes(live):
    """Version 1 or 2, whichever this host has: a group per controller, owned by the user, with the user's process in it."""
    given = []
    for tree in hierarchies():
        if tree.version == 2 or {"memory", "pids"} & set(tree.controllers):
            group = Path(tree.directory, f"t1-given-{live.user.uid}")
            group.mkdir()
            given.append(group)
    if not given:
        pytest.skip("no control groups are mounted here")

    def work():
        isolation, (hogged,) = commands_of(live, ["python3 -c 'bytearray(200 << 20)'"], limits=Limits(memory_mb=32))
        return isolation.limits, hogged.limit_hit, hogged.exit_code

    try:
        for group in given:
            for path in (group, *group.iterdir()):
                os.chown(path, live.user.uid, live.user.uid)
        live.user.groups = given
        limits, hit, code = work()
    finally:
        for group in given:
            remove_group(str(group))
    if "watchdog" in limits[0]:
        pytest.skip("a group of this host could not be given away: its controllers are not those of groups below")
    assert limits[0].startswith("memory=32MB cgroup-v")
    assert limits[1].startswith("processes=64 cgroup-v")
    assert (hit, code) == ("memory", 137)
