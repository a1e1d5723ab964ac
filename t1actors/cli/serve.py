"""`t1 serve`: a model behind an OpenAI-compatible endpoint whose turns are recorded for training."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import trio
from cyclopts import Parameter

from t1actors.cli.errors import CommandFailed, WrongUsage
from t1actors.cli.numbers import Whole, at_least
from t1actors.log.filelog import FileLog
from t1actors.models.folder import model_folder
from t1actors.models.tokenizer import Tokenizer, TokenizerError
from t1actors.runtime.actor_log import log_to_stderr
from t1actors.tito.record import Geometry
from t1actors.tito.render.choice import renderer_for
from t1actors.tito.render.interface import RenderError

if TYPE_CHECKING:
    from t1actors.engine.interface import Engine
    from t1actors.harness.endpoint.journal import FileJournal
    from t1actors.harness.endpoint.serving import Endpoint
    from t1actors.harness.endpoint.settings import Settings
    from t1actors.tito.render.interface import Renderer

LOOK_EVERY_S = 1.0


def serve(
    directory: Annotated[Path, Parameter(help="Where the turns are recorded; one that is there is gone on with.")],
    *,
    model: Annotated[str, Parameter(help="A model folder, or builtin:demo.")] = "builtin:demo",
    name: Annotated[str, Parameter(help="What clients call the model.")] = "t1",
    host: Annotated[
        str, Parameter(help="The address to listen on; others than this machine's need a token.")
    ] = "127.0.0.1",
    port: Annotated[Whole, Parameter(help="The port; 0 takes one that is free.")] = 8000,
    token_file: Annotated[
        Path | None, Parameter(help="A file whose first line is the token that clients must show.")
    ] = None,
    format_: Annotated[
        str, Parameter(name="--format", help="The chat format, such as qwen3; the tokenizer's own by default.")
    ] = "",
    temperature: Annotated[float, Parameter(help="Of sessions whose first call names none.")] = 1.0,
    seed: Annotated[Whole, Parameter(help="With session and prompt, what an answer is drawn from.")] = 0,
    max_ids: Annotated[Whole | None, Parameter(help="Ids of a conversation; the model's positions by default.")] = None,
    max_new_tokens: Annotated[Whole, Parameter(help="Ids of an answer whose call names no number.")] = 4096,
    max_calls: Annotated[Whole, Parameter(help="Calls at work at once; more are asked to come again.")] = 64,
    max_sessions: Annotated[Whole, Parameter(help="Sessions held at once.")] = 4096,
) -> None:
    """Serve a model to any harness that speaks OpenAI's API, and record each turn for training.

    Prints the base URL and a call to try. Ctrl-C stops it: calls at work get a few seconds. Started again on the same
    directory, also after a crash, it has all sessions and goes on; `t1 log cat DIRECTORY` shows what was recorded.

    Example: `t1 serve my-sessions --model builtin:demo --port 8000`

    Example: `t1 serve my-sessions --model my-model --host 0.0.0.0 --token-file token`
    """
    for option, number in (("--max-calls", max_calls), ("--max-sessions", max_sessions)):
        at_least(1, option, number)
    at_least(1, "--max-new-tokens", max_new_tokens)
    if not 0 <= port <= 65535:
        raise WrongUsage(f"--port {port}: 0 to 65535")
    token = None if token_file is None else _token_in(token_file)
    if token is None and host not in ("127.0.0.1", "::1", "localhost"):
        raise WrongUsage(f"--host {host} can be reached from elsewhere: give a --token-file, or use 127.0.0.1")
    others = [journal for journal in FileLog(directory / "log").journals() if journal != "endpoint"]
    if others:
        raise CommandFailed(f"{directory} holds a run already (journal {others[0]}); choose another directory")
    try:
        from t1actors.harness.endpoint.serving import Settings
    except ImportError as error:
        raise CommandFailed(f"serving needs more packages ({error}): pip install 't1actors[serve]'") from error
    folder = model_folder(model)
    try:
        renderer = renderer_for(Tokenizer.from_folder(folder), format_)
    except (TokenizerError, RenderError) as error:
        raise CommandFailed(f"--model {model}: {error}") from error
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    log_to_stderr("endpoint", os.getpid())
    print("loading the model", file=sys.stderr, flush=True)
    from t1actors.engine.torch_engine import TorchEngine
    from t1actors.models.pretrained import load_policy

    policy = load_policy(folder)
    at_most = policy.shape.max_positions
    max_ids = at_most if max_ids is None else max_ids
    if not 1 < max_ids <= at_most:
        raise WrongUsage(f"--max-ids {max_ids}: 2 to {at_most}, the model's positions")
    engine = TorchEngine(policy, max_live_sequences=max_calls, max_ids=max_ids)
    geometry = Geometry.of_model_config((folder / "config.json").read_bytes())
    try:
        settings = Settings(
            max_ids=max_ids,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
            max_calls=max_calls,
            max_sessions=max_sessions,
        )
    except ValueError as error:
        raise WrongUsage(str(error)) from error

    async def main() -> None:
        await _serve(directory, engine, renderer, geometry, settings, model=name, host=host, port=port, token=token)

    trio.run(main)


async def _serve(
    directory: Path,
    engine: Engine,
    renderer: Renderer,
    geometry: Geometry,
    settings: Settings,
    *,
    model: str,
    host: str,
    port: int,
    token: str | None,
) -> None:
    from t1actors.harness.endpoint.journal import FileJournal
    from t1actors.harness.endpoint.serving import serve as serving

    journal = FileJournal(directory)
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with (
            engine.running(),
            serving(
                engine, renderer, journal, geometry=geometry, settings=settings, model=model, host=host, port=port,
                token=token,
            ) as endpoint,
            anyio.create_task_group() as tasks,
        ):  # fmt: skip
            print(_greeting(endpoint, model, token is not None), flush=True)
            tasks.start_soon(_until_failed, journal)
            async for _ in signals:
                print("stopping", file=sys.stderr, flush=True)
                break
            tasks.cancel_scope.cancel()
    print(f"stopped; to go on: t1 serve {directory} with the same options", file=sys.stderr, flush=True)


async def _until_failed(journal: FileJournal) -> None:
    """What could not be written ends the process: who starts it again finds out what is durable."""
    while not journal.failed:  # noqa: ASYNC110  it happens once in a process's life
        await anyio.sleep(LOOK_EVERY_S)
    raise CommandFailed(journal.failed)


def _greeting(endpoint: Endpoint, model: str, asks_for_token: bool) -> str:
    shown = " -H 'Authorization: Bearer TOKEN'" if asks_for_token else ""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "hello"}}], "max_tokens": 32}}'
    return (
        f"base URL of a session: {endpoint.session_url('NAME')}\n"
        f"sessions held: {len(endpoint.core.sessions())}\n"
        f"try: curl {endpoint.session_url('try')}/chat/completions -H 'Content-Type: application/json'{shown} -d '{body}'"
    )


def _token_in(file: Path) -> str:
    lines = file.read_text().split("\n")
    token = lines[0].strip()
    if not token:
        raise CommandFailed(f"{file}: its first line is empty; write the token there")
    if file.stat().st_mode & 0o077:
        print(f"t1: {file} can be read by other users: chmod 600 {file}", file=sys.stderr)
    return token
