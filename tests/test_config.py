"""Configuration: a wrong key or value is named with its place and the right one; what is resolved is plain TOML."""

import dataclasses

import pytest

from t1actors import config as c
from t1actors.config import Config, ConfigError, digest, from_toml, resolve, to_toml


@pytest.mark.parametrize("preset", c.preset_names())
def test_a_resolved_preset_survives_being_written_and_read_as_toml(preset):
    resolved = resolve(preset=preset)
    assert from_toml(to_toml(resolved.config)) == resolved.config
    assert digest(from_toml(to_toml(resolved.config))) == digest(resolved.config)


def test_the_three_presets_are_there():
    assert c.preset_names() == ["demo", "nano", "smoke", "t1"]


def test_the_last_layer_that_names_a_key_wins_and_is_named_as_its_origin(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[train.actor]\nclip = 0.3\nlearning_rate = 0.5\n")
    resolved = resolve(preset="demo", file=file, sets=["train.actor.clip=0.1"])
    assert resolved.config.train.actor.clip == 0.1
    assert resolved.config.train.actor.learning_rate == 0.5
    assert resolved.origins["train.actor.clip"] == "--set"
    assert resolved.origins["train.actor.learning_rate"] == str(file)
    assert resolved.origins["train.actor.minibatches"] == "preset demo"
    assert resolved.origins["train.gamma"] == "default"


def test_the_printed_tree_says_where_each_value_came_from_and_is_still_toml():
    resolved = resolve(preset="smoke", sets=["run.seed=9"])
    text = to_toml(resolved.config, resolved.origins)
    assert "seed = 9  # --set" in text
    assert "batch_size = 24  # preset smoke" in text
    assert from_toml(text) == resolved.config


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["train.actor.clipp=0.1"], ["--set", "train.actor.clipp", "did you mean train.actor.clip?"]),
        (["clip=0.1"], ["unknown key clip", "train.actor.clip"]),
        (["train.actor=1"], ["train.actor is a section", "train.actor.clip"]),
        (["rollout.batch_size=many"], ["rollout.batch_size", "'many'", "integer", "str"]),
        (["rollout.batch_size=1.5"], ["rollout.batch_size", "integer", "float"]),
        (["rollout.batch_size=true"], ["rollout.batch_size", "integer", "bool"]),
        (["schedule.evaluate=1"], ["schedule.evaluate", "true or false"]),
        (["train.gamma=nan"], ["train.gamma", "finite"]),
        (["train.actor.betas=[0.9]"], ["train.actor.betas", "2 values"]),
        (["model.train_dtype=flaot32"], ["model.train_dtype", "'bfloat16'", "did you mean 'float32'?"]),
        (["rollout.batch_size=0"], ["rollout.batch_size = 0", "at least 1"]),
        (["rollout.temperature=0"], ["rollout.temperature", "above 0"]),
        (["run.seed"], ["--set run.seed", "key=value"]),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_be_right(sets, words):
    with pytest.raises(ConfigError) as caught:
        resolve(preset="demo", sets=sets)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "setting",
    [
        "schedule.train_steps=-1",
        "rollout.turn_limit=0",
        "rollout.command_deadline_s=0",
        "sandbox.memory_mb=1",
        "sandbox.lease_s=0",
        "verify.parallel=0",
        "train.micro_batch_ids=0",
        "train.actor.betas=[0.9, 1.0]",
        "train.critic.gradient_clip=0",
        "train.actor.clip=-1",
    ],
)
def test_a_value_that_no_run_could_work_with_is_refused_by_its_key(setting):
    with pytest.raises(c.ConfigError, match=setting.partition("=")[0]):
        c.resolve(preset="smoke", sets=[setting])


def test_an_unknown_preset_names_the_ones_there_are():
    with pytest.raises(ConfigError, match=r"did you mean 'demo'.*demo, nano, smoke, t1"):
        resolve(preset="demmo")


def test_a_missing_file_and_a_file_that_is_not_toml_are_both_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no configuration file .*none\.toml"):
        resolve(file=tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("[train\n")
    with pytest.raises(ConfigError, match=r"bad\.toml: not TOML: .*line 1"):
        resolve(file=bad)


def test_an_unknown_key_in_a_file_is_named_with_the_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[rollout]\nbatchsize = 3\n")
    with pytest.raises(
        ConfigError, match=r"mine\.toml: unknown key rollout\.batchsize; did you mean rollout\.batch_size"
    ):
        resolve(file=file)


def test_a_configuration_cannot_be_changed_after_it_is_resolved():
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolve(preset="demo").config.run.seed = 3


@pytest.mark.parametrize(
    ("batch", "oversample", "launched"), [(512, 0.09375, 560), (96, 0.09375, 105), (24, 0.0, 24), (1, 0.0, 1)]
)
def test_a_step_launches_its_batch_and_the_oversample_rounded_up(batch, oversample, launched):
    config = resolve(sets=[f"rollout.batch_size={batch}", f"rollout.oversample={oversample}"]).config
    assert config.launched_per_step == launched


def test_the_t1_preset_holds_the_values_of_the_paper():
    config = resolve(preset="t1").config
    assert (config.rollout.batch_size, config.launched_per_step) == (512, 560)
    assert (config.train.actor.learning_rate, config.train.critic.learning_rate) == (1e-6, 1.5e-5)
    assert (config.train.actor.betas, config.train.actor.weight_decay, config.train.actor.clip) == (
        (0.9, 0.98),
        0.1,
        0.2,
    )
    assert (config.train.gamma, config.train.lam, config.train.critic.value_clip) == (1.0, 1.0, 0.2)
    assert (config.train.actor.epochs, config.train.actor.minibatches, config.train.actor.whiten_advantages) == (
        1,
        1,
        False,
    )
    assert (config.verify.reward_scale, config.verify.deadline_s) == (20.0, 900.0)
    assert (config.sandbox.rate_per_s, config.sandbox.burst) == (6.0, 240)
    assert (config.rollout.trial_deadline_s, config.rollout.agent_deadline_s) == (5400.0, 3600.0)


def test_the_digest_names_the_configuration_and_nothing_else():
    assert digest(resolve(preset="demo").config) == digest(resolve(preset="demo", sets=["run.seed=0"]).config)
    assert digest(resolve(preset="demo").config) != digest(resolve(preset="demo", sets=["run.seed=1"]).config)
    assert digest(Config()) == digest(resolve().config)


def test_a_sandbox_that_keeps_less_output_than_a_terminal_shows_is_refused():
    with pytest.raises(
        ConfigError, match=r"sandbox\.output_bytes = 8000: must exceed rollout\.terminus\.observation_bytes"
    ):
        resolve(sets=["rollout.harness=terminus", "sandbox.output_bytes=8000"])
    resolve(sets=["sandbox.output_bytes=8000"])
