"""A session as a graph of turns: which ids a conversation that comes as text already has, and which are new.

    placement = graph.place(messages, tools)          # nothing changes
    ids = graph.ids_before(placement)                 # what the engine is given
    graph.add(placement, turn, given=message)         # the turn was committed

A node is one turn and holds only what the turn added: its context ids, its sampled ids, log-probs, routing, versions, the
messages that its context stands for, and the assistant message that was given out for it. So a session of n turns has a size
linear in n, and branches fall out of the walk.

Guarantees:
- the prompt of a call that goes on with a conversation is the held stream of the deepest node whose messages are a prefix of
  the request, and behind it what the renderer writes for the new messages: sampled ids are never rendered again, so that
  boundary is STRICT;
- that node was shown the same tools, and every assistant message on the way to it is what was given out;
- what has no such node (an edited history, other tools, an assistant message that nobody was given) becomes a chunk of its
  own by one full render and is counted with its cause; the nodes that are there stay as they are;
- the same messages again make a second turn beside the first, from the same ids;
- ``place`` changes nothing, and ``add`` is all or nothing: after a call that is refused the graph is as before;
- ``paths`` gives every sampled span exactly one chunk that trains it: the first one, in the order of their last nodes.

Pure: no clock, no files, no engine. Who commits a turn before it is added is ``harness.endpoint``'s business.

Shapes: a node whose stream has N ids, and whose parent's has P, holds routing rows [max(P - 1, 0), N - 1).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from t1actors.events import Tensor, VersionSpan
from t1actors.tito.record import TitoError
from t1actors.tito.render.interface import Renderer
from t1actors.tito.render.messages import Message, Tool
from t1actors.tito.stitch import PathTurn, Turn, paths_of

Join: TypeAlias = Literal["opening", "extension", "tools", "history", "answer"]
"""How a turn stands to what was there. ``opening``: a conversation that begins here, no assistant has spoken in it.
``extension``: it goes on from the ids of its parent. The others are SPLIT, by what differs from every conversation there is:
the tools, a message of the history, or an assistant's message."""
SPLITS: tuple[Join, ...] = ("tools", "history", "answer")


class GraphError(TitoError):
    """A call that has no place in the session's graph. Says why; the graph is as it was."""


class SessionFull(GraphError):
    """The session has as many turns as it may have."""


class ConversationFull(GraphError):
    """The messages leave no room for an answer."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a call belongs. ``parent``: the node it goes on from; None begins a chunk. ``messages`` are those that
    ``context_ids`` stand for: the new ones, or all where a chunk begins. ``differs_at``: the
    first message that no conversation has there; -1 where none differs."""

    parent: int | None
    context_ids: tuple[int, ...]
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    join: Join
    differs_at: int = -1


@dataclass(frozen=True, kw_only=True)
class NodeTurn:
    """What the engine said: as ``stitch.Turn``, its routing still a payload (most of a node's bytes)."""

    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    routing: Tensor
    versions: tuple[VersionSpan, ...]
    canonical: bool


@dataclass(frozen=True, kw_only=True)
class Node:
    """One turn. ``ends_at``: the ids of its stream, from the chunk's first to its last sampled one; ``messages_after``: the
    messages of its conversation, the given one included; ``root``: the node its chunk begins with."""

    number: int
    parent: int | None
    root: int
    context_ids: tuple[int, ...]
    turn: NodeTurn
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    given: Message
    join: Join
    ends_at: int
    messages_after: int


@dataclass
class SessionGraph:
    """See the module. ``max_ids``: of one conversation, its next turn's first id included; ``max_turns``: of the session."""

    renderer: Renderer
    max_ids: int
    max_turns: int
    nodes: list[Node] = field(default_factory=list[Node])
    _children: dict[int | None, list[int]] = field(default_factory=dict[int | None, list[int]])

    def place(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Placement:
        """Where a call with these messages goes on, and by which ids.

        Raises:
            GraphError: no messages, or an assistant's is the last.
            SessionFull, ConversationFull: a limit would be passed.
            RenderError: the template has no form for them.
        """
        if not messages:
            raise GraphError("no messages: a call needs at least one")
        if messages[-1].role == "assistant":
            raise GraphError(
                f"message {len(messages) - 1} is an assistant's and the last one: an answer cannot be begun for the model; "
                "end with a user's or a tool's message"
            )
        if len(self.nodes) >= self.max_turns:
            raise SessionFull(
                f"the session has {len(self.nodes)} turns, and may have {self.max_turns}; begin another one"
            )
        messages, tools = tuple(messages), tuple(tools)
        found = self._deepest(messages, lambda node: node.tools == tools)
        rest = messages[found.messages_after :] if found is not None else messages
        if found is not None and not any(message.role == "assistant" for message in rest):
            context = self.renderer.extension(rest, last_sampled=found.turn.sampled_ids[-1])
            placement = Placement(
                parent=found.number, context_ids=tuple(context), messages=rest, tools=tools, join="extension"
            )
        else:
            join, at = self._what_differs(messages, tools)
            context = self.renderer.opening(messages, tools)
            placement = Placement(
                parent=None, context_ids=tuple(context), messages=messages, tools=tools, join=join, differs_at=at
            )
        if (ids := self._held(placement.parent) + len(placement.context_ids)) >= self.max_ids:
            raise ConversationFull(
                f"the messages are {ids} tokens; this model's maximum context length is {self.max_ids} tokens, the answer "
                "included"
            )
        return placement

    def ids_before(self, placement: Placement) -> tuple[int, ...]:
        """All ids that stand before the answer."""
        ids: list[int] = []
        for node in self.path(placement.parent):
            ids += node.context_ids
            ids += node.turn.sampled_ids
        return (*ids, *placement.context_ids)

    def known_rows(self, placement: Placement) -> int:
        """How many routing rows of these ids the graph has."""
        return max(self._held(placement.parent) - 1, 0)

    def held(self, placement: Placement) -> int:
        """How many of these ids the graph has: none where a chunk begins."""
        return self._held(placement.parent)

    def add(self, placement: Placement, turn: NodeTurn, *, given: Message) -> Node:
        """The turn that was sampled at ``placement`` (of this graph) is there, and ``given`` is what was handed out for it.
        Raises ``GraphError`` for a turn without ids."""
        if not placement.context_ids or not turn.sampled_ids:
            raise GraphError(
                f"{len(placement.context_ids)} context ids and {len(turn.sampled_ids)} sampled; both are needed"
            )
        number = len(self.nodes)
        before = self.nodes[placement.parent].messages_after if placement.parent is not None else 0
        node = Node(
            number=number,
            parent=placement.parent,
            root=number if placement.parent is None else self.nodes[placement.parent].root,
            context_ids=placement.context_ids,
            turn=turn,
            messages=placement.messages,
            tools=placement.tools,
            given=given,
            join=placement.join,
            ends_at=self._held(placement.parent) + len(placement.context_ids) + len(turn.sampled_ids),
            messages_after=before + len(placement.messages) + 1,
        )
        self.nodes.append(node)
        self._children.setdefault(node.parent, []).append(number)
        return node

    def children(self, number: int | None) -> Sequence[int]:
        """The nodes that go on from ``number``; with None, those that begin a chunk."""
        return self._children.get(number, ())

    def beside(self, placement: Placement) -> int:
        """How many nodes stand where this one would: 0 unless the same call was answered before."""
        return sum(self.nodes[n].context_ids == placement.context_ids for n in self.children(placement.parent))

    def path(self, number: int | None) -> list[Node]:
        """The nodes from the chunk's first to ``number``."""
        path: list[Node] = []
        while number is not None:
            path.append(self.nodes[number])
            number = path[-1].parent
        return path[::-1]

    def paths(self, rows: Callable[[Tensor], npt.NDArray[np.generic]]) -> list[list[PathTurn]]:
        """The chunks, for ``stitch.stitch_paths``: one for each node that nothing goes on from, in the order of their
        numbers. Where two share their first turns, the later one has them as context. ``rows`` opens a routing payload."""
        return paths_of([_turn_of(node, rows) for node in self.nodes], [node.parent for node in self.nodes])

    def joins(self) -> dict[Join, int]:
        """How many turns stand how to what was there."""
        counts: dict[Join, int] = {"opening": 0, "extension": 0, "tools": 0, "history": 0, "answer": 0}
        for node in self.nodes:
            counts[node.join] += 1
        return counts

    # --- the walk -----------------------------------------------------------------------------------------------------

    def _held(self, number: int | None) -> int:
        return 0 if number is None else self.nodes[number].ends_at

    def _deepest(self, messages: tuple[Message, ...], fits: Callable[[Node], bool]) -> Node | None:
        """The node with the most messages that are a prefix of ``messages``, in a chunk whose first node ``fits``; of equal
        ones the last: what a client has of two answers that read the same is more likely the later one."""
        best: Node | None = None
        open_nodes = [number for number in self.children(None) if fits(self.nodes[number])]
        while open_nodes:
            node = self.nodes[open_nodes.pop()]
            if not self._is_prefix(node, messages):
                continue
            if best is None or (node.messages_after, node.number) > (best.messages_after, best.number):
                best = node
            open_nodes += self.children(node.number)
        return best

    def _is_prefix(self, node: Node, messages: tuple[Message, ...]) -> bool:
        """Whether the node's own messages stand in their place; those of its parents were looked at before."""
        given_at = node.messages_after - 1
        if given_at >= len(messages) or not is_given(messages[given_at], node.given):
            return False
        return messages[given_at - len(node.messages) : given_at] == node.messages

    def _what_differs(self, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> tuple[Join, int]:
        """Why a chunk begins, and at which message the request leaves the conversation that it is closest to."""
        if not any(message.role == "assistant" for message in messages):
            return "opening", -1
        closest = self._deepest(messages, lambda _: True)
        start = 0 if closest is None else closest.messages_after
        if closest is not None and closest.tools != tools:
            return "tools", start
        at, join = start, messages[start].role == "assistant"
        for number in self.children(None if closest is None else closest.number):
            node = self.nodes[number]
            if node.tools != tools:
                continue
            same = _equal_from(messages[start:], node.messages)
            if start + same == len(messages):  # the same call once more
                return node.join, -1
            if start + same >= at:
                at, join = start + same, same == len(node.messages) and messages[start + same].role == "assistant"
        return ("answer" if join else "history"), at


def _turn_of(node: Node, rows: Callable[[Tensor], npt.NDArray[np.generic]]) -> Turn:
    return Turn(
        context_ids=node.context_ids,
        sampled_ids=node.turn.sampled_ids,
        logprobs=node.turn.logprobs,
        routing_RLK=rows(node.turn.routing),
        versions=node.turn.versions,
        canonical=node.turn.canonical,
    )


def is_given(returned: Message, given: Message) -> bool:
    """Whether a client returned what it was given. Clients may write the arguments of a call anew: the same JSON value is the
    same call."""
    return returned.same_as(given) or _plain(returned).same_as(_plain(given))


def _plain(message: Message) -> Message:
    calls = tuple(msgspec.structs.replace(call, arguments=_canonical(call.arguments)) for call in message.tool_calls)
    return msgspec.structs.replace(message, tool_calls=calls)


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return arguments


def _equal_from(messages: tuple[Message, ...], own: tuple[Message, ...]) -> int:
    """How many messages the two begin with alike."""
    for count, (one, other) in enumerate(zip(messages, own, strict=False)):
        if one != other:
            return count
    return min(len(messages), len(own))
