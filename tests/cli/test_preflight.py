"""Own tasks and an own model: what can be used, what cannot and why, before anything starts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from t1actors import config as cfg
from t1actors.actors.schedule import Schedule
from t1actors.actors.task_files import TaskFiles
from t1actors.cli import preflight as module
from t1actors.cli.errors import CommandFailed
from t1actors.cli.preflight import check_unchanged, preflight, unmet_by_sandbox, with_full_paths
from t1actors.models.folder import PolicyUnsupported
from t1actors.runtime.actor import Unrecoverable
from t1actors.tasks.choice import read_choice, write_choice
from t1actors.tasks.reader import read_task
from t1actors.tasks.record import CheckRecord, Problem, write_record
from t1actors.tasks.task import Task, TaskError
from t1actors.tasks.write import make_tasks
from tests.models.chatml import raw_chatml

MODEL = {
    "model_type": "qwen3_moe",
    "vocab_size": 384,
    "max_position_embeddings": 1024,
}


def make_model(folder: Path, *, rows: int = 384, **changes: object) -> Path:
    """What preflight reads of a folder: no weights but the embedding."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**MODEL, **changes}))
    save_file({"model.embed_tokens.weight": np.zeros((rows, 8), np.float32)}, folder / "model.safetensors")
    raw_chatml().save(str(folder / "tokenizer.json"))
    return folder


def spoil(task: Path, path: str, *, old: str = "", new: str) -> None:
    file = task / path
    file.write_text(file.read_text().replace(old, new, 1) if old else new)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifteen tasks, three of which no sandbox here can be given."""
    directory = tmp_path_factory.mktemp("own") / "tasks"
    names = make_tasks(directory, levels=[1, 2], count=15, seed=900)
    for old, new in zip(names[:3], ("needs-user", "needs-network", "wrong-type"), strict=True):
        (directory / old).rename(directory / new)
    spoil(directory / "needs-user", "environment/Dockerfile", new="FROM debian\nUSER somebody\n")
    network = ("allow_internet = false", "allow_internet = true")
    spoil(directory / "needs-network", "task.toml", old=network[0], new=network[1])
    spoil(directory / "wrong-type", "task.toml", old="timeout_sec = 60.0", new='timeout_sec = "a minute"')
    spoil(directory / names[3], "task.toml", old="[agent]\ntimeout_sec", new="[agent]\ntimeout_secs")
    return directory


def configured(tasks: Path | None, model: Path | None = None, *sets: str) -> cfg.Config:
    own = [f"tasks.source={tasks}"] if tasks is not None else []
    own += [f"model.policy={model}"] if model is not None else []
    return cfg.resolve(preset="smoke", sets=[*own, *sets]).config


def test_what_can_be_used_is_counted_and_the_rest_is_named_with_its_reason(written: Path) -> None:
    found = preflight(configured(written), None)
    text = "\n".join(found.lines)
    assert f"tasks  usable 12 of 15 in {written}: 8 train, 2 heldout, 2 warmup" in text
    assert "left out needs-user: environment/Dockerfile, line 2: USER is not supported; supported are" in text
    assert (
        "left out needs-network: it asks for a network (network_mode or allow_internet): --set sandbox.network=" in text
    )
    assert "left out wrong-type: task.toml: verifier.timeout_sec = 'a minute': expected a number above 0" in text
    assert "task.toml has the key agent.timeout_secs, which means nothing here; did you mean agent.timeout_sec?" in text
    assert "the host's own /usr stands in for the images python:3.12-slim-bookworm (12)" in text
    assert "a step launches 24 trials from 8 training tasks: some are drawn more than once" in text
    for name in ("needs-user", "needs-network", "wrong-type"):
        assert f"| {name} | " in found.tasks_md
    assert found.tasks_md.count(" train | ") == 8


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        (
            ["sandbox.host_base=false", "sandbox.images=/nowhere"],
            "its image python:3.12-slim-bookworm is not in /nowhere: `t1 image import python:3.12-slim-bookworm SOURCE` "
            "imports it, or the host's own /usr stands in with --set sandbox.host_base=true",
        ),
        (["sandbox.memory_mb=64"], "needs 256 MB of memory, a sandbox has 64: --set sandbox.memory_mb=256"),
        (["sandbox.disk_mb=32"], "needs 64 MB of disk, a sandbox has 32: --set sandbox.disk_mb=64"),
        (["rollout.max_ids=12", "rollout.max_new_tokens=4"], "rollout.max_ids is 12"),
    ],
)
def test_a_run_without_one_usable_task_is_refused_with_the_reasons(written: Path, sets: list[str], reason: str) -> None:
    with pytest.raises(CommandFailed, match=r"no task in .* can be used") as refused:
        preflight(configured(written, None, *sets), None)
    assert reason in str(refused.value)


def test_what_a_check_found_is_used_and_kept_with_the_choice(tmp_path: Path) -> None:
    """A failed check leaves a task out; ids and baseline go into the run's choice; what is not checked is counted."""
    names = make_tasks(tmp_path / "tasks", levels=[1], count=8, seed=70)
    tasks = {name: read_task(tmp_path / "tasks" / name) for name in names}
    failed, known, stale, undeclared = names[:4]
    spoil(tmp_path / "tasks" / undeclared, "task.toml", old="expected = ", new="was_expected = ")
    tasks[undeclared] = read_task(tmp_path / "tasks" / undeclared)
    problem = Problem(part="reference", text="the reference fails 1 of 3 assertions: a")
    first = tasks[known].expected[0]
    for name, record in {
        failed: CheckRecord(digest=tasks[failed].digest, problems=(problem,)),
        known: CheckRecord(digest=tasks[known].digest, expected=tasks[known].expected, baseline=(first,)),
        stale: CheckRecord(digest="another", problems=(problem,), baseline=(first,)),
        undeclared: CheckRecord(digest=tasks[undeclared].digest, expected=("x", "y"), baseline=("y",)),
    }.items():
        write_record(tmp_path / "tasks" / name, record)

    config = configured(tmp_path / "tasks")
    found = preflight(config, None)
    text = "\n".join(found.lines)
    assert f"left out {failed}: `t1 task check`: reference: the reference fails 1 of 3 assertions: a" in text
    assert f"5 were not checked, 1 of them not since they changed: `t1 task check {tmp_path / 'tasks'}`" in text
    assert "2 pass some assertions when nothing is done" in text
    assert "declare no expected assertions" not in text
    assert found.choice is not None
    chosen = {task.name: task for task in found.choice.usable}
    assert (chosen[known].expected, chosen[known].baseline) == (tasks[known].expected, (first,))
    assert (chosen[undeclared].expected, chosen[undeclared].baseline) == (("x", "y"), ("y",))
    assert chosen[stale].baseline == ()

    (tmp_path / "run").mkdir()
    write_choice(tmp_path / "run", found.choice)
    write_record(tmp_path / "tasks" / known, CheckRecord(digest=tasks[known].digest))  # checked again while it runs
    files = TaskFiles(config.tasks, tmp_path / "run")
    assert files.read(known).baseline == (first,)
    assert files.read(undeclared).expected == ("x", "y")


def test_a_program_that_the_host_lacks_is_named(tmp_path: Path) -> None:
    names = make_tasks(tmp_path, levels=[1], count=6, seed=5)
    spoil(
        tmp_path / names[0], "task.toml", old="[metadata.t1]", new='[metadata.t1]\nprograms = ["bash", "no-such-tool"]'
    )
    text = "\n".join(preflight(configured(tmp_path), None).lines)
    assert f"left out {names[0]}: needs no-such-tool, and the host's /usr has none: install it there" in text


def test_a_pool_that_would_be_empty_is_refused(tmp_path: Path) -> None:
    make_tasks(tmp_path, levels=[1], count=4, seed=5)
    with pytest.raises(CommandFailed, match="leaves no heldout tasks"):
        preflight(configured(tmp_path), None)
    assert preflight(configured(tmp_path, None, "schedule.evaluate=false"), None).choice is not None


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no such directory"):
        preflight(configured(tmp_path / "nowhere"), None)


def test_the_pools_are_those_of_the_start_whatever_the_directory_holds_later(written: Path, tmp_path: Path) -> None:
    config = configured(written)
    choice = preflight(config, None).choice
    assert choice is not None
    write_choice(tmp_path, choice)
    before = [Schedule(config, tmp_path).planned(step) for step in range(9)]
    [extra] = make_tasks(written, levels=[1], count=1, seed=5000)
    try:
        assert [Schedule(config, tmp_path).planned(step) for step in range(9)] == before
        assert Schedule(config, tmp_path / "elsewhere").planned(3) != before[3]  # without the choice it would not be so
    finally:
        (written / extra).rename(tmp_path / extra)
    assert read_choice(tmp_path) == choice


def test_a_task_that_changed_since_the_start_is_refused_by_name(tmp_path: Path) -> None:
    names = make_tasks(tmp_path / "tasks", levels=[1], count=6, seed=7)
    config = configured(tmp_path / "tasks")
    choice = preflight(config, None).choice
    assert choice is not None
    write_choice(tmp_path, choice)
    files = TaskFiles(config.tasks, tmp_path)
    assert files.read(names[2]).digest == choice.usable[[t.name for t in choice.usable].index(names[2])].digest
    check_unchanged(config, choice)
    spoil(tmp_path / "tasks" / names[2], "instruction.md", new="something else\n")
    with pytest.raises(Unrecoverable, match=f"task {names[2]} is not what it was when the run began"):
        files.read(names[2])
    with pytest.raises(CommandFailed, match=f"task {names[2]} is not what it was"):
        check_unchanged(config, choice)
    (tmp_path / "tasks" / names[2] / "task.toml").unlink()
    with pytest.raises(Unrecoverable, match=names[2]):
        files.read(names[2])


def test_a_model_that_fits_is_described(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    lines = preflight(configured(None, folder), 10**9).lines
    assert lines[0] == f"model  {folder}: 3,072 parameters, 384 ids, 1,024 positions, chat format: qwen3"
    assert "of memory in all processes together" in lines[1]


@pytest.mark.parametrize(
    ("changes", "sets", "says"),
    [
        ({"rows": 100}, [], "has 100 rows, config.json says vocab_size = 384"),
        ({"rows": 200, "vocab_size": 200}, [], "its tokenizer has ids up to 307, its model embeds 200"),
        (
            {"max_position_embeddings": 512},
            [],
            "has 512 positions (max_position_embeddings), rollout.max_ids is 640; lower it",
        ),
        ({"vocab_size": "many"}, [], "vocab_size = 'many': expected a whole number above 0"),
        ({"model_type": "llama"}, [], "no forward with routing record and replay"),
        ({}, ["model.critic=CRITIC"], "no value.safetensors in that folder"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_the_figure_and_the_file(
    tmp_path: Path, changes: dict[str, object], sets: list[str], says: str
) -> None:
    folder = make_model(tmp_path / "model", **changes)  # pyright: ignore[reportArgumentType]
    sets = [text.replace("CRITIC", str(folder)) for text in sets]
    with pytest.raises(PolicyUnsupported) as refused:
        preflight(configured(None, folder, *sets), None)
    assert says in str(refused.value)
    assert str(folder) in str(refused.value)


def test_a_model_too_large_for_the_memory_that_is_left_is_refused(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    with pytest.raises(CommandFailed, match=r"3,072 parameters; its weights and optimizers take about .* left"):
        preflight(configured(None, folder), 100_000)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_file_that_is_cut_is_named(tmp_path: Path, name: str) -> None:
    folder = make_model(tmp_path / "model")
    (folder / name).write_bytes((folder / name).read_bytes()[:40])
    with pytest.raises(PolicyUnsupported, match=name):
        preflight(configured(None, folder), None)


def test_a_part_of_the_weights_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    index = {"weight_map": {"model.embed_tokens.weight": "model.safetensors", "lm_head.weight": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(PolicyUnsupported, match=r"model-2\.safetensors missing"):
        preflight(configured(None, folder), None)


def test_a_runs_own_paths_are_written_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    full = with_full_paths(configured(Path("tasks"), Path("model")))
    assert (full.tasks.source, full.model.policy) == (str(tmp_path / "tasks"), str(tmp_path / "model"))
    builtin = configured(None)
    assert with_full_paths(builtin) == builtin
    assert replace(full, model=builtin.model, tasks=builtin.tasks) == builtin


MODE = '[environment]\nnetwork_mode = "{}"'
OF_AGENT = '[agent]\nnetwork_mode = "{}"'


@pytest.mark.parametrize(
    ("sandbox", "changes", "reason"),
    [
        ("none", [], ""),
        ("tasks", [], ""),
        ("none", [MODE.format("public")], "--set sandbox.network=tasks gives it one"),
        ("tasks", [MODE.format("public")], ""),
        ("none", [MODE.format("public"), OF_AGENT.format("no-network")], ""),
        ("none", [OF_AGENT.format("public")], "--set sandbox.network=tasks"),
        ("tasks", [MODE.format("allowlist")], "a network that reaches named hosts only"),
        ("tasks", ['[verifier]\nnetwork_mode = "public"'], "there is none while grading"),
    ],
)
def test_a_network_is_had_where_the_task_asks_for_it_and_the_run_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandbox: str, changes: list[str], reason: str
) -> None:
    with_tool(monkeypatch, tmp_path / "programs")
    task = asking(tmp_path, changes)
    settings = configured(tmp_path, None, f"sandbox.network={sandbox}").sandbox
    found = unmet_by_sandbox(task, settings)
    assert len(found) == bool(reason)
    assert reason in "".join(found)


def test_a_machine_without_the_tool_gives_no_network_and_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = configured(tmp_path, None, "sandbox.network=tasks").sandbox
    [reason] = unmet_by_sandbox(asking(tmp_path, [MODE.format("public")]), settings)
    assert reason == "it asks for a network, which takes slirp4netns: apt-get install slirp4netns"


def with_tool(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As where slirp4netns is installed."""
    folder.mkdir()
    (folder / "slirp4netns").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def asking(directory: Path, changes: list[str]) -> Task:
    """A task that can be used, with tables of its task.toml changed."""
    [name] = make_tasks(directory / "tasks", levels=[1], count=1, seed=901)
    spoil(directory / "tasks" / name, "task.toml", old="allow_internet = false\n", new="")
    for change in changes:
        table = change.partition("\n")[0]
        spoil(directory / "tasks" / name, "task.toml", old=table, new=change)
    return read_task(directory / "tasks" / name)


TERMINUS = ("rollout.harness=terminus", "rollout.command_deadline_s=20")


def test_a_window_that_the_harness_alone_fills_is_refused() -> None:
    config = cfg.resolve(preset="smoke", sets=[*TERMINUS, "rollout.max_ids=640"]).config
    with pytest.raises(
        CommandFailed, match=r"what the harness terminus tells the model takes \d+ ids without any task"
    ):
        preflight(config, None)


def test_what_the_harness_needs_on_the_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = cfg.resolve(preset="smoke", sets=[*TERMINUS, "rollout.max_ids=1024"]).config
    monkeypatch.setattr(module, "find_program", lambda name: None)
    with pytest.raises(
        CommandFailed, match=r"rollout.harness = 'terminus' needs tmux in every sandbox.*apt-get install tmux"
    ):
        preflight(config, None)
