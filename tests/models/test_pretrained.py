import json

import pytest
import torch
from transformers import AutoTokenizer
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeForCausalLM

from t1actors.models.demo import VOCABULARY, tiny_config
from t1actors.models.folder import ModelFolderError, PolicyUnsupported, check_folder, model_folder
from t1actors.models.policy import new_policy
from t1actors.models.pretrained import load_policy, save_policy
from t1actors.models.tokenizer import END, Tokenizer, train_tokenizer
from tests.models.small import random_ids, small_policy

CORPUS = ["mkdir -p a/b && echo hello > a/b/c.txt", "wc -l < notes.txt", "rc 0"] * 20


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    policy = small_policy()
    save_policy(policy, folder, train_tokenizer(CORPUS, 300))
    return folder, policy


def edit_config(source, target, **changes):
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | changes))
    return target


def test_hugging_face_loads_what_is_saved(saved):
    folder, policy = saved
    theirs = Qwen3MoeForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids_N = random_ids(20)
    with torch.no_grad():
        ours = policy.logits(policy.forward_packed(ids_N, [20]).hidden_NH)
        torch.testing.assert_close(theirs(ids_N[None]).logits[0], ours, rtol=1e-5, atol=1e-5)


def test_auto_tokenizer_gives_the_same_ids_and_special_tokens(saved):
    folder, _ = saved
    theirs, ours = AutoTokenizer.from_pretrained(folder), Tokenizer.from_folder(folder)
    text = "mkdir -p a/b && wc -l < notes.txt"
    assert theirs.encode(text, add_special_tokens=False) == ours.encode(text)
    assert theirs.convert_tokens_to_ids(END) == ours.special.end == theirs.eos_token_id
    assert theirs.pad_token_id == ours.special.pad


def test_a_saved_policy_loads_with_the_same_digest(saved):
    folder, policy = saved
    loaded = load_policy(folder)
    assert loaded.digest() == policy.digest()
    assert loaded.hf.lm_head.weight.data_ptr() == loaded.hf.model.embed_tokens.weight.data_ptr(), "tied stays tied"
    half = load_policy(folder, dtype="bfloat16")
    assert half.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, r"model_type 'llama' has no forward .* supported: Qwen3-MoE"),
        ({"model_type": "gpt_oss"}, "supported: Qwen3-MoE"),
        ({"use_sliding_window": True, "sliding_window": 4096}, "sliding-window attention"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rotary embeddings"),
        ({"attention_dropout": 0.1}, "attention dropout"),
        ({"quantization_config": {"bits": 4}}, "quantised weights"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(saved, tmp_path, changes, message):
    with pytest.raises(PolicyUnsupported, match=message):
        load_policy(edit_config(saved[0], tmp_path, **changes))


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no model.safetensors"),
        ("tokenizer.json", "no tokenizer.json"),
    ],
)
def test_an_incomplete_folder_is_refused_by_what_is_missing(saved, tmp_path, missing, message):
    folder = edit_config(saved[0], tmp_path)
    (folder / missing).unlink()
    with pytest.raises(PolicyUnsupported, match=message):
        check_folder(folder)


def test_an_unknown_builtin_or_folder_is_named(tmp_path):
    with pytest.raises(ModelFolderError, match="nonesuch"):
        model_folder("builtin:nonesuch")
    with pytest.raises(ModelFolderError, match="Hugging Face"):
        model_folder(str(tmp_path))


def test_the_demonstration_model_is_small_and_seeded():
    policy = new_policy(tiny_config(), seed=3)
    count = sum(p.numel() for p in policy.parameters().values())
    assert 900_000 < count < 1_000_000
    assert policy.shape.vocabulary == VOCABULARY
    assert policy.digest() == new_policy(tiny_config(), seed=3).digest()
    assert policy.digest() != new_policy(tiny_config(), seed=4).digest()
