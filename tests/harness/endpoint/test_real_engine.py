"""The built-in engine and model behind the endpoint: what is recorded is what the forward saw."""

import anyio
import numpy as np
import pytest
import torch

from t1actors.engine.torch_engine import TorchEngine
from t1actors.harness.endpoint.core import EndpointCore
from t1actors.harness.endpoint.journal import FileJournal
from t1actors.harness.endpoint.settings import Settings
from t1actors.models.folder import model_folder
from t1actors.models.pretrained import load_policy
from t1actors.models.tokenizer import Tokenizer
from t1actors.tito.record import Geometry
from t1actors.tito.render.choice import renderer_for
from t1actors.tito.render.messages import Message
from tests.harness.endpoint.test_core import a_call

DEMO = model_folder("builtin:demo")
POLICY = load_policy(DEMO)
RENDERER = renderer_for(Tokenizer.from_folder(DEMO))
GEOMETRY = Geometry.of_model_config((DEMO / "config.json").read_bytes())


async def conversed(directory, *, turns, temperature):
    """The record of a conversation, and its messages."""
    engine = TorchEngine(POLICY.copy(), max_live_sequences=4, max_ids=400)
    journal = FileJournal(directory)
    core = EndpointCore(engine, RENDERER, journal, geometry=GEOMETRY, settings=Settings(max_ids=400))
    texts = ["make a folder"]
    async with engine.running(), journal.running():
        for number in range(turns):
            answered = await core.call("s", a_call(*texts, max_tokens=12, temperature=temperature))
            texts += [answered.given.content, f"rc {number}"]
        await core.reward("s", 1.0)
        (trajectory,) = core.trajectories()
    return trajectory.stitched, texts[:-1]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_stream_of_a_model_that_wrote_canonically_is_one_render_of_the_conversation(backend, tmp_path):
    stitched, texts = anyio.run(lambda: conversed(tmp_path, turns=4, temperature=0.3), backend=backend)
    (chunk,) = stitched.record.chunks
    assert len(chunk.turns) == 4
    assert {boundary.case for boundary in stitched.boundaries} == {"STRICT"}
    assert stitched.non_canonical_turns == 0
    said = [Message(role=("user", "assistant")[n % 2], content=text) for n, text in enumerate(texts[:-1])]
    whole = RENDERER.opening(said)
    assert tuple(chunk.arrays().ids_N.tolist()[: len(whole)]) == whole


def test_the_trainers_log_probs_of_a_record_are_the_samplers_bit_for_bit(tmp_path):
    stitched, _ = anyio.run(lambda: conversed(tmp_path, turns=4, temperature=0.7))
    arrays = stitched.record.chunks[0].arrays()
    ids_N, routing = (
        torch.from_numpy(arrays.ids_N.astype(np.int64)),
        torch.from_numpy(arrays.routing_RLK.astype(np.int64)),
    )
    forwarded = POLICY.forward_packed(ids_N[:-1], (len(ids_N) - 1,), routing)
    sampled = np.flatnonzero(arrays.mask_N)
    logprobs, _ = POLICY.logprobs(forwarded.hidden_NH[sampled - 1], ids_N[sampled], temperature=0.7)
    assert np.array_equal(logprobs.detach().numpy(), arrays.logprobs_N[sampled])
