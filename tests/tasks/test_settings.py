"""Whatever a task.toml holds, it is read or refused, and a refusal names the file and the key."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t1actors.tasks.network import NetworkNeeds
from t1actors.tasks.settings import KEYS, read_settings
from t1actors.tasks.task import TaskError
from tests.tasks.tomls import toml_text

TYPED = {
    "version": "1.2",
    "schema_version": "1.4",
    "metadata.t1.expected": ["a", "b"],
    "metadata.t1.control": "c",
    "metadata.t1.baseline": ["a"],
    "metadata.t1.accept": ["history"],
    "metadata.t1.programs": ["git"],
    "metadata.t1.families": ["git"],
    "metadata.t1.level": 2,
    "metadata.t1.sub_goals": 3,
    "metadata.t1.grading": "fresh-root",
    "metadata.t1.graded_paths": ["/srv"],
    "metadata.t1.subject": "user",
    "metadata.t1.tests_readable": False,
    "verifier.timeout_sec": 60.0,
    "verifier.user": "root",
    "verifier.network_mode": "public",
    "verifier.env": {"A": "1"},
    "verifier.environment": {},
    "verifier.collect": [],
    "agent.timeout_sec": 900,
    "agent.user": 0,
    "agent.network_mode": "no-network",
    "environment.docker_image": "debian:12",
    "environment.build_timeout_sec": 30,
    "environment.os": "Linux",
    "environment.cpus": 1.5,
    "environment.memory_mb": 512,
    "environment.memory": "512M",
    "environment.storage_mb": 1024,
    "environment.storage": "1G",
    "environment.gpus": 0,
    "environment.tpu": {},
    "environment.network_mode": "no-network",
    "environment.allow_internet": False,
    "environment.env": {"B": "2"},
    "environment.workdir": "/srv",
    "environment.mcp_servers": [],
    "environment.healthcheck": {},
    "solution.env": {},
}
"""Every key whose type is checked, with a value that is right."""
READ_NEVER = {"source", "artifacts", "multi_step_reward_strategy", "multi_step_reward_mode", "metadata.t1.seed",
              "verifier.environment_mode", "environment.gpu_types", "environment.skills_dir"}  # fmt: skip
WITH_OTHERS = {"steps", "verifier.allowed_hosts", "agent.allowed_hosts", "environment.allowed_hosts"}
TABLES = {"task", "metadata", "metadata.t1", "verifier", "agent", "environment", "solution"}


def document(flat: Mapping[str, object]) -> dict[str, object]:
    """Dotted keys as nested tables."""
    top: dict[str, object] = {}
    for dotted, value in flat.items():
        *tables, key = dotted.split(".")
        inner = top
        for name in tables:
            inner = inner.setdefault(name, {})  # pyright: ignore[reportAssignmentType]
        inner[key] = value
    return top


def read(tmp_path: Path, flat: Mapping[str, object]):
    file = tmp_path / "task.toml"
    file.write_text(toml_text(document(flat)))
    return read_settings(file)


def refusal(file: Path) -> str | None:
    """What reading ``file`` is refused with; None where it is read."""
    try:
        read_settings(file)
    except TaskError as error:
        return str(error)
    return None


def test_all_keys_together_are_read(tmp_path: Path):
    found = read(tmp_path, TYPED)
    assert (found.expected, found.baseline, found.control, found.level) == (("a", "b"), ("a",), "c", 2)
    assert (found.memory_mb, found.storage_mb, found.cpus) == (512, 1024, 1.5)
    assert (found.env, found.verifier_env, found.workdir) == ((("B", "2"),), (("A", "1"),), "/srv")
    assert (found.verifier_timeout_s, found.agent_timeout_s, found.build_timeout_s) == (60.0, 900.0, 30.0)
    assert (found.unknown_keys, found.unused_keys) == ((), ())


def test_no_key_that_is_known_is_forgotten_here():
    keys = {key for key in KEYS if key not in TABLES and not key.startswith("task.")}
    assert keys == set(TYPED) | READ_NEVER | WITH_OTHERS


@pytest.mark.parametrize(
    "key", [*TYPED, "task", "metadata", "metadata.t1", "verifier", "agent", "environment", "solution"]
)
@pytest.mark.parametrize("value", ["?", -1, 2.5, True, [1], [{"a": 1}], {"a": 1}, {"${x}": "${y}"}], ids=repr)
def test_a_value_of_another_type_is_refused_with_file_and_key(tmp_path: Path, key: str, value: object):
    if key in TABLES and isinstance(value, dict):
        return
    file = tmp_path / "task.toml"
    file.write_text(toml_text(document({key: value})))
    said = refusal(file)
    same = type(value) is type(TYPED[key]) if key in TYPED else False
    if said is None:
        assert same or (isinstance(value, float) and isinstance(TYPED[key], int)), "taken"
    else:
        assert f"{file}: {key}" in said


@pytest.mark.parametrize(
    ("flat", "says"),
    [
        ({"steps": [{"name": "one"}]}, "steps: tasks of several steps are not supported"),
        ({"environment.gpus": 1}, "environment.gpus = 1: sandboxes with GPUs are not supported"),
        ({"environment.tpu": {"type": "v4"}}, "environment.tpu: sandboxes with TPUs are not supported"),
        ({"environment.os": "Windows"}, "environment.os = 'Windows': sandboxes are Linux"),
        ({"environment.mcp_servers": [{"name": "x"}]}, "environment.mcp_servers: agents have a shell and no MCP client"),
        ({"environment.healthcheck": {"command": "x"}}, "environment.healthcheck: a sandbox is ready when it is made"),
        ({"verifier.environment": {"cpus": 1}}, "verifier.environment: grading takes the task's own environment"),
        ({"verifier.collect": [{"command": "x"}]}, "verifier.collect: what a trial leaves is sealed whole"),
        ({"agent.user": "alice"}, "agent.user = 'alice': commands run as the sandbox's own root"),
        ({"verifier.user": 1000}, "verifier.user = 1000: commands run as the sandbox's own root"),
        ({"verifier.env": {"KEY": "${KEY}"}}, "verifier.env.KEY = '${KEY}': the host's variables reach no sandbox"),
        ({"environment.env": {"1": "x"}}, "environment.env = {'1': 'x'}: expected names of variables"),
        ({"environment.workdir": "app"}, "environment.workdir = 'app': expected an absolute path"),
        ({"environment.docker_image": " "}, "environment.docker_image = ' ': expected a name"),
        ({"environment.network_mode": "some"}, "network_mode = 'some': expected one of no-network, public, allowlist"),
        ({"agent.allowed_hosts": ["x"]}, "agent.allowed_hosts = ['x']: expected network_mode"),
        ({"environment.memory": "2G", "environment.memory_mb": 1}, "environment.memory = '2G': expected what memory_mb = 1"),
        ({"metadata.t1.expected": ["a"], "metadata.t1.baseline": ["b"]}, "baseline = ['b']: expected ids that"),
        ({"metadata.t1.accept": ["all"]}, "metadata.t1.accept = ['all']: expected findings that a task may intend"),
        ({"environment.memory_mb": 10**400}, "environment.memory_mb = "),
    ],
)  # fmt: skip
def test_what_is_not_to_be_had_is_refused_by_name(tmp_path: Path, flat: dict[str, object], says: str):
    with pytest.raises(TaskError, match=re.escape(says)):
        read(tmp_path, flat)


@pytest.mark.parametrize(
    ("flat", "asked"),
    [
        ({}, NetworkNeeds("none")),
        ({"environment.allow_internet": True}, NetworkNeeds("internet")),
        ({"environment.allow_internet": True, "environment.network_mode": "no-network"}, NetworkNeeds("none")),
        ({"environment.network_mode": "public"}, NetworkNeeds("internet")),
        ({"environment.network_mode": "public", "agent.network_mode": "no-network"}, NetworkNeeds("none")),
        ({"environment.network_mode": "no-network", "agent.network_mode": "public"}, NetworkNeeds("internet")),
        (
            {"environment.network_mode": "allowlist", "environment.allowed_hosts": ["example.org"]},
            NetworkNeeds("hosts"),
        ),
        (
            {"verifier.network_mode": "public", "environment.network_mode": "no-network"},
            NetworkNeeds("none", verifier=True),
        ),
    ],
)
def test_the_network_is_asked_for_in_the_spellings_of_every_version(
    tmp_path: Path, flat: dict[str, object], asked: NetworkNeeds
):
    assert read(tmp_path, flat).network == asked


def test_keys_without_effect_here_are_told_from_unknown_ones(tmp_path: Path):
    flat = {"artifacts": ["/app/x"], "environment.skills_dir": "/s", "environment.skill_dir": "/s", "task.naem": "x"}
    found = read(tmp_path, flat)
    assert found.unused_keys == ("artifacts", "environment.skills_dir")
    assert set(found.unknown_keys) == {"environment.skill_dir", "task.naem"}


def test_a_task_of_the_old_terminal_bench_layout_is_named(tmp_path: Path):
    (tmp_path / "task.yaml").write_text("instruction: x\n")
    with pytest.raises(TaskError, match=r"a task\.yaml: a task in the layout of Terminal-Bench 1"):
        read_settings(tmp_path / "task.toml")


NAMES = st.sampled_from(sorted({part for key in KEYS for part in key.split(".")})) | st.text(
    string.printable, max_size=6
)
VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(string.printable, max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
TABLE = st.dictionaries(NAMES, VALUES, max_size=5)
SECTIONS = ("task", "metadata", "verifier", "agent", "environment", "solution")
DOCUMENTS = st.fixed_dictionaries({}, optional=dict.fromkeys(SECTIONS, TABLE | VALUES)) | TABLE
SETTINGS = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SETTINGS
@given(found=DOCUMENTS)
def test_any_document_is_read_or_refused_with_the_file_and_a_key_that_it_holds(
    tmp_path: Path, found: dict[str, object]
):
    file = tmp_path / "task.toml"
    file.write_text(toml_text(found))
    said = refusal(file)
    if said is None:
        return
    told = re.match(rf"{re.escape(str(file))}: ([a-z0-9_.]+)", said)
    assert told is not None, said
    inner: object = found
    for part in told[1].split("."):
        if not isinstance(inner, dict):
            break
        assert part in inner, said
        inner = inner[part]


@SETTINGS
@given(data=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_read_or_refused_with_the_file(tmp_path: Path, data: bytes):
    file = tmp_path / "task.toml"
    file.write_bytes(data)
    said = refusal(file)
    assert said is None or said.startswith(f"{file}: ")


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 100_000, "a = " + "9" * 5_000, "[environment]\ncpus = " + "9" * 4_000],
    ids=["deep", "long", "big"],
)
def test_absurd_documents_are_refused_in_a_line(tmp_path: Path, text: str):
    file = tmp_path / "task.toml"
    file.write_text(text)
    with pytest.raises(TaskError) as refused:
        read_settings(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert len(str(refused.value)) < 400


@SETTINGS
@given(extra=st.dictionaries(st.from_regex(r"x[a-z]{1,6}", fullmatch=True), VALUES, max_size=3), place=st.sampled_from(
    ["", "task.", "verifier.", "agent.", "environment.", "solution.", "metadata.t1."]))  # fmt: skip
def test_every_unknown_key_is_kept(tmp_path: Path, extra: dict[str, object], place: str):
    found = read(tmp_path, {f"{place}{key}": value for key, value in extra.items()})
    assert set(found.unknown_keys) == {place + key for key in extra}
