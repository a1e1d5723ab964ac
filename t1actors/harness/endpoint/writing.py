"""What is written of a turn: the message that is handed out, and the event.

Guarantees: the event holds what the engine said as it said it, and enough of the call to hand the same answer out again.
"""

from __future__ import annotations

import msgspec
import numpy as np

from t1actors.engine.interface import GenerateResult
from t1actors.events import ChatCall, TurnSampled
from t1actors.harness.endpoint.form import Call
from t1actors.harness.endpoint.journal import Said
from t1actors.payloads import Blobs, pack, pack_array
from t1actors.tito.graph import Placement
from t1actors.tito.render.interface import Answer
from t1actors.tito.render.messages import Message

_encode_said = msgspec.json.Encoder().encode


def given_of(answer: Answer, *, one_tool_call: bool) -> Message:
    """The answer as it is handed out. A call that could not be read is shown as it was written: who gets it can say so."""
    return Message(
        role="assistant",
        content="\n".join(filter(None, [answer.content, *(call.text for call in answer.broken)])),
        reasoning=answer.reasoning,
        tool_calls=answer.calls[:1] if one_tool_call else answer.calls,
    )


def turn_sampled(
    blobs: Blobs,
    *,
    session: str,
    turn: int,
    placement: Placement,
    result: GenerateResult,
    temperature: float,
    replica: str,
    call: Call,
    given: Message,
    answer: Answer,
    volatile: bool,
) -> TurnSampled:
    """The event of a turn, its large payloads stored, ``volatile``: that of the routing as such."""
    said = Said(messages=placement.messages, given=given, tools=placement.tools if placement.parent is None else ())
    return TurnSampled(
        trial=session,
        turn=turn,
        context_ids=placement.context_ids,
        sampled_ids=result.sampled_ids,
        logprobs=tuple(result.logprobs.astype(np.float64).tolist()),
        routing=pack_array(blobs, result.routing_RLK, volatile=volatile),
        versions=result.versions,
        temperature=temperature,
        finish=result.finish,
        command="",
        execute=False,
        canonical=answer.canonical,
        entropy_mean=result.entropy_mean,
        replica=replica,
        queue_s=result.queue_s,
        prefill_s=result.prefill_s,
        decode_s=result.decode_s,
        chat=ChatCall(
            continues=placement.parent,
            join=placement.join,
            request_id=call.request_id,
            request=call.digest,
            said=pack(blobs, _encode_said(said)),
            broken=len(answer.broken),
            foreign=answer.foreign,
        ),
    )
