"""Train your agent: a loop that talks to OpenAI's API, pointed at an endpoint; what it is rewarded for comes more often.

    pip install openai
    python examples/train_your_agent.py          # about a minute on one core

The agent is two calls of OpenAI's client and a reward: the share of letters that are an "e". It knows nothing of ids, records
or training. The endpoint keeps the ids of what the model sampled, so the trainer sees those, and the engine gap is 0 exactly.
The reward goes from below 0.1 to above 0.9 in six steps.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import httpx2
import numpy as np
import openai

from t1actors.config import ActorConfig, CriticConfig, TrainConfig
from t1actors.engine.torch_engine import TorchEngine
from t1actors.harness.endpoint.journal import FileJournal
from t1actors.harness.endpoint.serving import Endpoint, serve
from t1actors.harness.endpoint.settings import Settings
from t1actors.models.checkpoint import weights_to_bytes
from t1actors.models.folder import model_folder
from t1actors.models.pretrained import load_policy
from t1actors.models.tokenizer import Tokenizer
from t1actors.models.value import ValueModel
from t1actors.tito.render.choice import renderer_for
from t1actors.train.actor_step import actor_step
from t1actors.train.batch import Batch
from t1actors.train.critic_step import critic_step, estimate_values
from t1actors.train.networks import fresh_state, geometry_of

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 6
SESSIONS = int(sys.argv[2]) if len(sys.argv) > 2 else 32
FOLDER = model_folder("builtin:demo")
CONFIG = TrainConfig(
    actor=ActorConfig(learning_rate=1e-3, weight_decay=0.0, whiten_advantages=True),
    critic=CriticConfig(learning_rate=1e-3, weight_decay=0.0),
)


async def agent(endpoint: Endpoint, http: httpx2.AsyncClient, name: str) -> None:
    """Somebody else's agent. All that it knows of us is the base URL, and where its reward goes."""
    client = openai.AsyncOpenAI(base_url=endpoint.session_url(name), api_key="none", http_client=http)
    messages = [{"role": "user", "content": "Say something with many an e."}]
    said = ""
    for _ in range(2):
        answer = await client.chat.completions.create(model="t1", messages=messages, max_tokens=6)  # pyright: ignore
        text = answer.choices[0].message.content or ""
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "More."}]
        said += text
    reward = said.count("e") / max(len(said), 1)
    (await http.post(f"{endpoint.base_url}/sessions/{name}/reward", json={"reward": reward})).raise_for_status()


async def main(directory: Path) -> None:
    policy = load_policy(FOLDER)
    geometry = geometry_of(policy)
    actor_net, critic_net = policy.copy(), ValueModel.from_policy(policy)  # scratch space of the trainer
    actor, critic = fresh_state(actor_net), fresh_state(critic_net)
    engine = TorchEngine(policy, max_live_sequences=SESSIONS, max_ids=256)
    renderer, journal = renderer_for(Tokenizer.from_folder(FOLDER)), FileJournal(directory)
    settings = Settings(max_ids=256)
    async with (
        engine.running(),
        serve(engine, renderer, journal, geometry=geometry, settings=settings) as endpoint,
        httpx2.AsyncClient(timeout=600) as http,
    ):
        for step in range(STEPS):
            names = [f"s{step}.t{index}" for index in range(SESSIONS)]
            await asyncio.gather(*(agent(endpoint, http, name) for name in names))
            found = endpoint.trajectories(names)
            batch = Batch.of([(one.stitched.record, one.reward) for one in found], geometry)
            values = estimate_values(critic_net, critic, batch, CONFIG)
            critic = critic_step(critic_net, critic, batch, values.values_T, CONFIG, seed=0, step=step).state
            trained = actor_step(actor_net, actor, {}, batch, values.values_T, CONFIG, seed=0, step=step)
            actor = trained.state
            await engine.load(trained.report.weights_after, weights_to_bytes(trained.weights))
            await endpoint.forget(names)
            reward = np.mean([one.reward for one in found])
            print(f"step {step}: reward {reward:.3f}, engine gap {trained.report.gap.total_max:g}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(main(Path(place)))
