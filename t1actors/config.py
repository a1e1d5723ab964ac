"""The one configuration tree: frozen dataclasses, read from TOML, presets and ``--set key=value``.

Guarantees: an unknown key or a value of the wrong type is a ``ConfigError`` that names the key, where it came from
and the nearest valid key; the resolved tree is plain TOML (``to_toml``) and its digest names the run's configuration;
every value knows where it came from (``Resolved.origins``).

The values here are the defaults of the library; presets (``t1actors/presets/*.toml``) say what differs.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import ipaddress
import math
import shlex
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast

import blake3

REFUSED_ADDRESSES = (
    "host", "10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/4",
)  # fmt: skip
"""The host's own, private, link-local (metadata services of clouds) and multicast addresses."""
KernelsName = Literal["auto", "native", "padded"]
Backend = Literal["namespaces", "docker"]
BACKENDS: tuple[Backend, ...] = typing.get_args(Backend)


class ConfigError(ValueError):
    """A configuration that cannot be used: says which key, where it was written, and what would be right."""


@dataclass(frozen=True)
class RunConfig:
    """The run itself: its seed, how durable its log is, how often actors are started again."""

    seed: int = 0
    log_durability: Literal["machine", "process"] = "machine"
    restart_budget: int = 20
    """Restarts of one actor, within ten minutes, before the run gives up."""
    backoff_s: float = 0.1
    backoff_max_s: float = 10.0
    low_disk_mb: int = 256
    """While less is free where the run is written, no step opens: what is under way has room to end. 0 turns it off."""
    snapshot_events: int = 20_000
    """After so many events an actor keeps a snapshot beside its journal, and when it stops: a restart reads from there. A log
    can be trimmed as far as there are snapshots. 0: never."""
    keep_steps: int = 0
    """So many of the last finished steps stay replayable, and what only older ones need is deleted as the run goes on; 0: all
    stays."""
    segment_mb: float = 64.0
    """Size (MiB) of the files that a journal consists of: of old steps, whole ones are deleted. At most 2,000."""

    @property
    def segment_bytes(self) -> int:
        return max(1, int(self.segment_mb * 2**20))


@dataclass(frozen=True)
class ModelConfig:
    """Which policy and critic, and how they compute."""

    policy: str = "builtin:demo"
    """A Hugging Face folder, or ``builtin:NAME`` for a warm start shipped with the package."""
    critic: str = "policy"
    """Where the critic's weights come from: ``policy`` (the policy's trunk, a zero value head), or a critic folder."""
    train_dtype: Literal["float32", "bfloat16"] = "float32"
    sampler_dtype: Literal["float32", "bfloat16"] = "float32"
    kernels: KernelsName = "auto"
    """What computes: ``native`` in C, compiled at install; ``padded`` in torch, everywhere, slower; ``auto``: the first
    of these that is there and exact where the run starts. All of a run use the same, in every session."""


@dataclass(frozen=True)
class TasksConfig:
    """Which tasks are trained on and held out."""

    source: str = "builtin"
    """``builtin`` (the 13 procedural families) or a directory of Harbor-layout tasks."""
    levels: tuple[int, ...] = (1, 2, 3)
    train_count: int = 2048
    heldout_per_level: int = 40
    train_seed: int = 100_000_000
    heldout_seed: int = 50_000_000
    warmup_seed: int = 70_000_000
    warmup_count: int = 512


@dataclass(frozen=True)
class ScheduleConfig:
    """How many steps of each purpose, in this order, and whether to evaluate."""

    warmup_steps: int = 0
    recalibrate_steps: int = 4
    train_steps: int = 36
    evaluate: bool = True
    """Held-out evaluation, sampled at temperature 1 and greedy, before and after training."""


@dataclass(frozen=True)
class TerminusConfig:
    """The terminal of ``rollout.harness = "terminus"``, and what is bounded in it."""

    columns: int = 160
    rows: int = 40
    observation_bytes: int = 10_000
    """Of what the terminal shows after a turn: more is cut, half of it from the head and half from the tail."""
    duration_limit_s: float = 60.0
    """The longest wait after one command; those of a turn together are bounded by rollout.command_deadline_s."""
    malformed_limit: int = 5
    """So many answers without a break that can't be read end the episode; 0: none do."""


@dataclass(frozen=True)
class RolloutConfig:
    """Trials of a step, and the limits of an episode."""

    batch_size: int = 96
    oversample: float = 0.09375
    temperature: float = 1.0
    turn_limit: int = 12
    turn_slack: int = 0
    """When positive, a built-in task's turn limit is its number of sub-goals plus this; never above ``turn_limit``."""
    harness: Literal["shell", "terminus", "command"] = "shell"
    """How the model works the terminal: ``shell`` (a turn is a command), ``terminus`` (a turn is keystrokes for tmux, as
    JSON), ``command`` (a program of yours calls the model over HTTP; docs/harness.md)."""
    command: str = ""
    """Of ``harness = "command"``: what is started for each trial, such as "python my_agent.py". No shell reads it."""
    max_new_tokens: int = 40
    max_ids: int = 640
    """Of one stream: prompt, answers and observations together."""
    compaction: Literal["none", "summary"] = "none"
    """What happens when a stream is nearly full: ``none``, the episode ends with it; ``summary``, the model is asked for a
    summary, and goes on with it in a new stream."""
    summary_tokens: int = 200
    """The longest summary."""
    observation_chars: int = 60
    sampler_replicas: int = 1
    max_live_sequences: int = 128
    load_stall_s: float = 600.0
    """New weights may take as long as they need to load; a replica that shows no progress for so long is taken for stuck: its
    process is killed, and loads them when it is back."""
    trial_deadline_s: float = 5400.0
    """From a trial's sandbox being there to its tree being sealed; as long may it wait for the sandbox. What takes longer is
    infrastructure's fault, and not measured."""
    agent_deadline_s: float = 3600.0
    """Of that, for the agent: then its episode ends, and is graded as it stands."""
    command_deadline_s: float = 5.0
    on_batch_short: Literal["continue", "stop"] = "continue"
    terminus: TerminusConfig = field(default_factory=TerminusConfig)


@dataclass(frozen=True)
class DockerConfig:
    """The daemon of ``sandbox.backend = "docker"``."""

    socket: str = "/var/run/docker.sock"
    """A Unix socket of this host; only root's daemons with the storage driver overlay2 serve."""
    image: str = "t1-base"
    """With sandbox.host_base it stands in for a task's ``FROM`` image: one that the daemon has, with bash and python3."""
    pull: bool = False
    """Let the daemon pull the images that tasks name and it does not have."""


@dataclass(frozen=True)
class SandboxConfig:
    """Admission, leases and limits of sandboxes."""

    backend: Backend = "namespaces"
    rate_per_s: float = 100.0
    burst: int = 32
    """Creations: ``burst`` at once, and so many a second; through restarts, and over all runs with the same node_dir."""
    max_live: int = 128
    """Of one run."""
    node_dir: str = ""
    """A directory that the runs of a machine share, such as /run/t1actors: those with the same one share ``rate_per_s``,
    ``burst`` and ``node_max_live``, and should give the same numbers. Empty: the run shares with nobody."""
    node_max_live: int = 0
    """Sandboxes that may live at once on the machine, over all runs with the same node_dir. 0: no such limit."""
    create_deadline_s: float = 30.0
    """Of one try to make a sandbox."""
    retries: int = 2
    """More tries to make a sandbox after a fault of the infrastructure."""
    retry_pause_s: float = 0.2
    """Before the first of them; twice as long before each later one, and up to half more or less."""
    quarantine_after: int = 3
    """After so many trials of a task, one after the other, for which no sandbox could be made it is not drawn again."""
    lease_s: float = 120.0
    memory_mb: int = 256
    disk_mb: int = 64
    processes: int = 64
    output_bytes: int = 65_536
    host_base: bool = False
    """Let the allow-listed host root (with Docker, ``docker.image``) stand in for a task's ``FROM`` image. Opt-in, recorded
    in SandboxReady."""
    images: str = "~/.cache/t1actors/images"
    """The directory of the image store of namespaces' sandboxes (docs/images.md)."""
    network: Literal["none", "tasks"] = "none"
    """``tasks``: the sandboxes of tasks that ask for a network have one; with ``none`` such tasks are left out. Never while
    grading in a fresh root (docs/sandbox.md)."""
    build_network: bool = False
    """Let the RUN instructions of tasks' Dockerfiles have a network. What was built so is not built again. Those of
    namespaces refuse ``refused_addresses``; a Docker daemon gives its own network."""
    refused_addresses: tuple[str, ...] = REFUSED_ADDRESSES
    """What a network does not reach, in trials and builds: IPv4 blocks, and ``host`` for the host's own addresses. All else
    that the host can reach can be reached."""
    docker: DockerConfig = field(default_factory=DockerConfig)


@dataclass(frozen=True)
class VerifyConfig:
    """Grading and the reward."""

    deadline_s: float = 900.0
    parallel: int = 8
    reward_scale: float = 20.0
    """S of r = P / S, fixed for the whole run (T1 section 8)."""
    same_sandbox: bool = False
    """Allow tasks that ask for it to be graded in the agent's own sandbox, where a report can be forged."""
    tool_packages: tuple[str, ...] = ()
    """Packages, installed here, that tests may import beside pytest."""


@dataclass(frozen=True)
class TitoConfig:
    """How turns become records."""

    stitch: Literal["strict", "t1"] = "strict"
    """Boundaries that a record may have: ``strict``, none but STRICT and SPLIT; ``t1``, also the repaired ones, after which
    tokens were sampled under another history than the record's."""


@dataclass(frozen=True)
class CriticConfig:
    """The critic's loss and optimizer."""

    learning_rate: float = 1.5e-5
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.1
    epochs: int = 1
    minibatches: int = 1
    value_clip: float = 0.2
    """0 turns the clip off."""
    loss_scale: float = 1.0
    gradient_clip: float = 1.0
    rate_warmup_updates: int = 0


@dataclass(frozen=True)
class ActorConfig:
    """The actor's loss and optimizer."""

    learning_rate: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.1
    epochs: int = 1
    minibatches: int = 1
    clip: float = 0.2
    whiten_advantages: bool = False
    gradient_clip: float = 1.0
    rate_warmup_updates: int = 0


@dataclass(frozen=True)
class TrainConfig:
    """What decides a training step's bytes, with the batch and the states."""

    gamma: float = 1.0
    lam: float = 1.0
    snapshot_every: int = 4
    micro_batch_ids: int = 8192
    """Most ids in one forward and backward pass; bounds memory and decides no bit of a step."""
    replay_routing: bool = True
    recompute_layers: bool = False
    """Keep only each layer's input for the backward pass and run the layer again in it: less memory, more time, the
    same bits."""
    stall_s: float = 3600.0
    """A step of the critic or of the actor, or loading its model, that takes longer is taken for stuck: its process is
    killed, and the step taken again."""
    ranks: int = 1
    """Processes that compute a step of the critic together, and as many of the actor; they decide no bit of a step."""
    critic: CriticConfig = field(default_factory=CriticConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)


@dataclass(frozen=True)
class Config:
    """The whole tree."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    tasks: TasksConfig = field(default_factory=TasksConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    verify: VerifyConfig = field(default_factory=VerifyConfig)
    tito: TitoConfig = field(default_factory=TitoConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    @property
    def launched_per_step(self) -> int:
        """ceil((1 + s) B): the trials launched for a batch of B (T1 section 1)."""
        return math.ceil((1 + self.rollout.oversample) * self.rollout.batch_size)


@dataclass(frozen=True)
class Resolved:
    """A configuration and, for every dotted key, where its value came from ("default", "preset demo", "run.toml",
    "--set")."""

    config: Config
    origins: Mapping[str, str]


def preset_names() -> list[str]:
    """The shipped presets, sorted."""
    return sorted(
        p.name.removesuffix(".toml")
        for p in resources.files("t1actors").joinpath("presets").iterdir()
        if p.name.endswith(".toml")
    )


def resolve(*, preset: str | None = None, file: Path | None = None, sets: Sequence[str] = ()) -> Resolved:
    """Defaults, then the preset, then the file, then ``key=value`` sets; the last one that names a key wins.

    Raises:
        ConfigError: unknown preset or key, wrong type, unreadable TOML, or values that contradict each other.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {key: "default" for key, _ in _leaves(Config)}
    layers: list[tuple[str, Mapping[str, Any]]] = []
    if preset is not None:
        if preset not in preset_names():
            raise ConfigError(
                f"no preset {preset!r}{_nearest(preset, preset_names())}; presets: {', '.join(preset_names())}"
            )
        text = resources.files("t1actors").joinpath("presets", f"{preset}.toml").read_text()
        layers.append((f"preset {preset}", tomllib.loads(text)))
    if file is not None:
        try:
            layers.append((str(file), _toml(read_text(file), origin=str(file))))
        except FileNotFoundError as error:
            raise ConfigError(f"no configuration file {file}; write one from `t1 config show --preset demo`") from error
    for text in sets:
        key, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(f"--set {text}: expected key=value, as in --set train.actor.clip=0.1")
        layers.append(("--set", _nest(key.strip(), _parse_scalar(value.strip()))))
    for origin, tree in layers:
        for key, value in _flatten(tree):
            _check_key(key, origin)
            values[key] = value
            origins[key] = origin
    config = _build(Config, "", values, origins)
    _validate(config)
    return Resolved(config, origins)


def from_toml(text: str, *, origin: str = "configuration") -> Config:
    """The configuration in ``text`` (what ``to_toml`` wrote). Raises ``ConfigError``."""
    values = dict(_flatten(_toml(text, origin=origin)))
    for key in values:
        _check_key(key, origin)
    config = _build(Config, "", values, dict.fromkeys(values, origin))
    _validate(config)
    return config


def read_text(file: Path) -> str:
    """The text of a configuration file. Raises ``ConfigError``, ``OSError``."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not text in UTF-8, so no configuration: byte {error.start:,}") from error


def to_toml(config: Config, origins: Mapping[str, str] | None = None) -> str:
    """The whole tree as TOML, deterministic; with ``origins`` each line says where its value came from."""
    lines: list[str] = []

    def section(node: Any, path: str) -> None:
        plain = [(f.name, getattr(node, f.name)) for f in dataclasses.fields(node)]
        if path:
            lines.append(f"\n[{path}]")
        for name, value in plain:
            if not dataclasses.is_dataclass(value):
                key = f"{path}.{name}" if path else name
                note = f"  # {origins[key]}" if origins is not None else ""
                lines.append(f"{name} = {_toml_value(value)}{note}")
        for name, value in plain:
            if dataclasses.is_dataclass(value):
                section(value, f"{path}.{name}" if path else name)

    section(config, "")
    return "\n".join(lines).lstrip("\n") + "\n"


def digest(config: Config) -> str:
    """blake3 of the configuration's TOML."""
    return blake3.blake3(to_toml(config).encode()).hexdigest()


# --- helpers ------------------------------------------------------------------------------------------------------------


def _toml(text: str, *, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: not TOML: {error}") from error


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Evaluated once: every key that is checked asks for all of them."""
    return typing.get_type_hints(cls)


def _leaves(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    hints = _hints(cls)
    for f in dataclasses.fields(cls):
        hint = hints[f.name]
        if dataclasses.is_dataclass(hint):
            yield from _leaves(cast(type, hint), f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}", hint


def _nearest(word: str, choices: Sequence[str]) -> str:
    found = difflib.get_close_matches(word, choices, n=1, cutoff=0.4)
    return f"; did you mean {found[0]!r}?" if found else ""


def _check_key(key: str, origin: str) -> None:
    known = [k for k, _ in _leaves(Config)]
    if key in known:
        return
    if any(k.startswith(key + ".") for k in known):
        raise ConfigError(
            f"{origin}: {key} is a section, not a value; its keys: {', '.join(k for k in known if k.startswith(key + '.'))}"
        )
    tails = {k.rsplit(".", 1)[1]: k for k in reversed(known)}
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if not near:
        near = [tails[t] for t in difflib.get_close_matches(key.rsplit(".", 1)[-1], list(tails), n=1, cutoff=0.5)]
    raise ConfigError(
        f"{origin}: unknown key {key}" + (f"; did you mean {near[0]}?" if near else "; `t1 config show` lists all keys")
    )


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _nest(key: str, value: Any) -> Mapping[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _parse_scalar(text: str) -> Any:
    """``--set`` values are TOML; a bare word is a string."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _build(cls: type, path: str, values: Mapping[str, Any], origins: Mapping[str, str]) -> Any:
    hints = _hints(cls)
    arguments: dict[str, Any] = {}
    for f in dataclasses.fields(cls):
        key = f"{path}{f.name}"
        hint = hints[f.name]
        if dataclasses.is_dataclass(hint):
            arguments[f.name] = _build(cast(type, hint), key + ".", values, origins)
        elif key in values:
            arguments[f.name] = _convert(values[key], hint, key, origins.get(key, ""))
    return cls(**arguments)


def _convert(value: Any, hint: Any, key: str, origin: str) -> Any:
    kind = typing.get_origin(hint)
    arguments = typing.get_args(hint)

    def wrong(expected: str) -> ConfigError:
        return ConfigError(f"{origin}: {key} = {value!r}: expected {expected}, got {type(value).__name__}")

    if kind is Literal:
        if value not in arguments:
            raise ConfigError(
                f"{origin}: {key} = {value!r}: must be one of {', '.join(map(repr, arguments))}"
                + _nearest(str(value), [str(a) for a in arguments])
            )
        return value
    if kind in (types.UnionType, typing.Union):
        return (
            value if value is None else _convert(value, next(a for a in arguments if a is not type(None)), key, origin)
        )
    if kind is tuple:
        if not isinstance(value, (list, tuple)):
            raise wrong("a list")
        items = cast("Sequence[Any]", value)
        if arguments[-1] is not Ellipsis and len(items) != len(arguments):
            raise ConfigError(f"{origin}: {key} = {list(items)!r}: expected {len(arguments)} values")
        return tuple(_convert(item, arguments[0], key, origin) for item in items)
    if hint is bool:
        if not isinstance(value, bool):
            raise wrong("true or false")
        return value
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise wrong("a number")
        if not math.isfinite(value):
            raise wrong("a finite number")
        return float(value)
    if hint is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong("an integer")
        return value
    if not isinstance(value, str):
        raise wrong("a string")
    return value


def _validate(config: Config) -> None:
    def need(condition: bool, message: str) -> None:
        if not condition:
            raise ConfigError(message)

    r, t = config.rollout, config.train
    need(0 < config.run.segment_mb <= 2000, f"run.segment_mb = {config.run.segment_mb}: must lie in (0, 2000]")
    need(r.batch_size >= 1, f"rollout.batch_size = {r.batch_size}: must be at least 1")
    need(r.oversample >= 0, f"rollout.oversample = {r.oversample}: must not be negative")
    need(r.temperature > 0, f"rollout.temperature = {r.temperature}: training samples need a temperature above 0")
    need(r.max_new_tokens >= 1, f"rollout.max_new_tokens = {r.max_new_tokens}: must be at least 1")
    need(
        r.max_ids > r.max_new_tokens,
        f"rollout.max_ids = {r.max_ids}: must exceed rollout.max_new_tokens = {r.max_new_tokens}",
    )
    # A stream with a summary in it must have room for an answer, and for the next summary.
    summed_up = 2 * r.summary_tokens + r.max_new_tokens
    need(
        r.compaction == "none" or summed_up < r.max_ids,
        f"rollout.max_ids = {r.max_ids}: a summary, an answer and the next summary (2 x rollout.summary_tokens = "
        f"{r.summary_tokens} + rollout.max_new_tokens = {r.max_new_tokens}) leave no room for a prompt",
    )
    need(
        r.harness != "terminus" or config.sandbox.output_bytes >= r.terminus.observation_bytes + 1024,
        f"sandbox.output_bytes = {config.sandbox.output_bytes}: must exceed rollout.terminus.observation_bytes = "
        f"{r.terminus.observation_bytes} by 1024 at least, or the tail of what the terminal shows is lost",
    )
    programs = 'rollout.harness = "command"'
    try:
        argv = shlex.split(r.command)
    except ValueError as error:
        raise ConfigError(f"rollout.command = {r.command!r}: {error}") from error
    need(
        (r.harness == "command") == bool(argv),
        f"rollout.command = {r.command!r} with rollout.harness = {r.harness!r}: {programs} needs a command, and no other "
        "harness has one",
    )
    need(
        r.harness != "command" or r.compaction == "none",
        f'rollout.compaction = {r.compaction!r}: with {programs} the program keeps its context short; set "none"',
    )
    need(r.sampler_replicas >= 1, f"rollout.sampler_replicas = {r.sampler_replicas}: must be at least 1")
    need(config.verify.reward_scale > 0, f"verify.reward_scale = {config.verify.reward_scale}: must be positive")
    need(config.sandbox.rate_per_s > 0, f"sandbox.rate_per_s = {config.sandbox.rate_per_s}: must be positive")
    need(config.sandbox.burst >= 1, f"sandbox.burst = {config.sandbox.burst}: must be at least 1")
    need(config.sandbox.max_live >= 1, f"sandbox.max_live = {config.sandbox.max_live}: must be at least 1")
    need(
        config.sandbox.node_max_live == 0 or config.sandbox.node_dir != "",
        f"sandbox.node_max_live = {config.sandbox.node_max_live}: needs sandbox.node_dir, the same in all runs here",
    )
    for block in config.sandbox.refused_addresses:
        need(not (fault := fault_of_block(block)), f"sandbox.refused_addresses: {fault}")
    need(
        0 <= t.gamma <= 1 and 0 <= t.lam <= 1, f"train.gamma = {t.gamma}, train.lam = {t.lam}: both must lie in [0, 1]"
    )
    need(t.snapshot_every >= 1, f"train.snapshot_every = {t.snapshot_every}: must be at least 1")
    need(len(config.tasks.levels) > 0, "tasks.levels: at least one level")
    for key, least in _LEAST.items():
        value = _leaf(config, key)
        need(value >= least, f"{key} = {value}: must be at least {least}")
    for key in _POSITIVE:
        value = _leaf(config, key)
        need(value > 0, f"{key} = {value}: must be positive")
    for name, part in (("actor", t.actor), ("critic", t.critic)):
        need(part.minibatches >= 1 and part.epochs >= 1, f"train.{name}: epochs and minibatches must be at least 1")
        need(
            part.minibatches <= r.batch_size,
            f"train.{name}.minibatches = {part.minibatches}: more than rollout.batch_size",
        )
        need(part.learning_rate >= 0, f"train.{name}.learning_rate = {part.learning_rate}: must not be negative")
        need(part.weight_decay >= 0, f"train.{name}.weight_decay = {part.weight_decay}: must not be negative")
        need(part.gradient_clip > 0, f"train.{name}.gradient_clip = {part.gradient_clip}: must be positive")
        need(all(0 <= beta < 1 for beta in part.betas), f"train.{name}.betas = {part.betas}: both must lie in [0, 1)")
    need(t.actor.clip > 0, f"train.actor.clip = {t.actor.clip}: must be positive")
    need(t.critic.value_clip >= 0, f"train.critic.value_clip = {t.critic.value_clip}: must not be negative")


def fault_of_block(block: str) -> str:
    """Why a sandbox's network cannot be told to refuse these addresses; empty: it can."""
    if block == "host":
        return ""
    try:
        ipaddress.IPv4Network(block)
    except ValueError as error:
        return f"{block!r} is no block of IPv4 addresses ({error}); write 10.0.0.0/8, or host for this host's own"
    return "" if "/" in block else f"{block!r} has no length; write {block}/32"


_LEAST: Mapping[str, int] = {
    "run.restart_budget": 0,
    "run.snapshot_events": 0,
    "run.keep_steps": 0,
    "tasks.train_count": 0,
    "tasks.heldout_per_level": 0,
    "tasks.warmup_count": 0,
    "tasks.train_seed": 0,
    "tasks.heldout_seed": 0,
    "tasks.warmup_seed": 0,
    "schedule.warmup_steps": 0,
    "schedule.recalibrate_steps": 0,
    "schedule.train_steps": 0,
    "rollout.turn_limit": 1,
    "rollout.observation_chars": 0,
    "rollout.terminus.columns": 20,
    "rollout.terminus.rows": 5,
    "rollout.terminus.observation_bytes": 200,
    "rollout.terminus.malformed_limit": 0,
    "rollout.max_live_sequences": 1,
    "rollout.summary_tokens": 1,
    "sandbox.memory_mb": 16,
    "sandbox.disk_mb": 1,
    "sandbox.processes": 2,
    "sandbox.output_bytes": 0,
    "sandbox.node_max_live": 0,
    "sandbox.retries": 0,
    "sandbox.quarantine_after": 1,
    "verify.parallel": 1,
    "train.micro_batch_ids": 1,
    "train.ranks": 1,
}
_POSITIVE = (
    "rollout.trial_deadline_s",
    "rollout.agent_deadline_s",
    "rollout.command_deadline_s",
    "rollout.terminus.duration_limit_s",
    "sandbox.create_deadline_s",
    "sandbox.lease_s",
    "sandbox.retry_pause_s",
    "verify.deadline_s",
    "run.backoff_s",
    "run.backoff_max_s",
)


def _leaf(config: Config, key: str) -> Any:
    node: Any = config
    for part in key.split("."):
        node = getattr(node, part)
    return node


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(v) for v in cast("tuple[Any, ...]", value)) + "]"
    return repr(value)
