"""The graph of a session: which ids a conversation that comes as text already has."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t1actors.events import Tensor, VersionSpan
from t1actors.log.blobs import MemoryBlobs
from t1actors.payloads import pack_array, unpack_array
from t1actors.tito.graph import ConversationFull, GraphError, NodeTurn, SessionFull, SessionGraph, is_given
from t1actors.tito.record import Geometry
from t1actors.tito.render.interface import RenderError
from t1actors.tito.render.messages import Message, Tool, ToolCall
from t1actors.tito.stitch import stitch_paths
from tests.tito.plain_renderer import END, PlainRenderer, letters

GEOMETRY = Geometry(layers=1, top_k=2, experts=8)
BLOBS = MemoryBlobs()
LOOK = Tool(name="look")


def user(text):
    return Message(role="user", content=text)


def assistant(text, **changes):
    return Message(role="assistant", content=text, **changes)


def a_graph(**changes):
    return SessionGraph(PlainRenderer(), **({"max_ids": 10_000, "max_turns": 1000} | changes))


def rows(tensor: Tensor):
    return unpack_array(BLOBS, tensor)


def turn_at(graph, placement, text, *, end=(END,)):
    """What an engine says: ``text`` letter by letter; a routing row names its own position, so that a moved row shows."""
    sampled = (*letters(text), *end)
    known, total = graph.known_rows(placement), graph.held(placement) + len(placement.context_ids) + len(sampled)
    positions = np.arange(known, total - 1)
    routing = np.stack([positions % 4, positions % 4 + 4], axis=-1)[:, None, :].astype(np.uint8)
    return NodeTurn(
        sampled_ids=sampled,
        logprobs=tuple(-0.5 - n for n in range(len(sampled))),
        routing=pack_array(BLOBS, routing),
        versions=(VersionSpan(version="v", start=0, end=len(sampled)),),
        canonical=True,
    )


def answer(graph, messages, text, tools=(), **changes):
    """The node of a call that the model answers with ``text``."""
    placement = graph.place(messages, tools)
    return graph.add(placement, turn_at(graph, placement, text, **changes), given=assistant(text))


def stream(graph, node):
    return [i for n in graph.path(node.number) for i in (*n.context_ids, *n.turn.sampled_ids)]


def stitched(graph):
    return stitch_paths(graph.paths(rows), trial="t", index=0, task="k", temperature=1.0, geometry=GEOMETRY)


def sampled_spans(graph):
    """Every turn's sampled ids, as often as the record trains them."""
    found = []
    for chunk in stitched(graph).record.chunks:
        ids = chunk.arrays().ids_N.tolist()
        found += [tuple(ids[start:end]) for start, end in chunk.turns]
    return sorted(found)


def test_a_conversation_that_goes_on_is_one_chunk_and_equals_one_render_of_it_all():
    graph = a_graph()
    answer(graph, [user("hi")], "yes")
    last = answer(graph, [user("hi"), assistant("yes"), user("more")], "no")
    whole = PlainRenderer().opening([user("hi"), assistant("yes"), user("more")])
    assert stream(graph, last) == [*whole, *letters("no"), END]
    assert [node.join for node in graph.nodes] == ["opening", "extension"]
    assert len(graph.paths(rows)) == 1


def test_a_node_holds_only_what_its_turn_added():
    graph, messages = a_graph(), [user("go")]
    for n in range(50):
        node = answer(graph, messages, f"a{n}")
        messages = [*messages, node.given, user("next")]
    sizes = [len(node.context_ids) + len(node.turn.sampled_ids) + len(node.messages) for node in graph.nodes]
    assert max(sizes[1:]) <= sizes[1] + 1


def test_a_turn_that_was_cut_off_is_closed_by_unsampled_context():
    graph = a_graph()
    answer(graph, [user("hi")], "ye", end=())
    last = graph.place([user("hi"), assistant("ye"), user("go on")])
    assert last.join == "extension"
    assert last.context_ids[0] == END


def test_the_same_messages_again_are_a_second_answer_from_the_same_ids():
    graph = a_graph()
    answer(graph, [user("hi")], "yes")
    first = answer(graph, [user("hi"), assistant("yes"), user("more")], "one")
    second = answer(graph, [user("hi"), assistant("yes"), user("more")], "two")
    assert (first.parent, first.context_ids) == (second.parent, second.context_ids)
    placement = graph.place([user("hi"), assistant("yes"), user("more")])
    assert graph.beside(placement) == 2
    assert [[step.trained for step in path] for path in graph.paths(rows)] == [[True, True], [False, True]]
    assert sampled_spans(graph) == sorted((*letters(text), END) for text in ("yes", "one", "two"))


def test_of_two_answers_that_read_the_same_the_later_one_is_gone_on_with():
    graph = a_graph()
    answer(graph, [user("hi")], "yes")
    later = answer(graph, [user("hi")], "yes")
    assert graph.place([user("hi"), assistant("yes"), user("more")]).parent == later.number


def test_one_early_message_that_differs_begins_a_chunk_and_leaves_the_others_as_they_are():
    graph = a_graph()
    answer(graph, [user("hi")], "yes")
    second = answer(graph, [user("hi"), assistant("yes"), user("more")], "no")
    split = graph.place([user("ho"), assistant("yes"), user("more"), assistant("no"), user("and")])
    assert (split.parent, split.join, split.differs_at) == (None, "history", 0)
    late = graph.place([user("hi"), assistant("yes"), user("mire"), assistant("no"), user("and")])
    assert (late.parent, late.join, late.differs_at) == (None, "history", 2)
    answer(graph, [user("ho"), assistant("yes"), user("more"), assistant("no"), user("and")], "so")
    going_on = graph.place([user("hi"), assistant("yes"), user("more"), assistant("no"), user("and")])
    assert going_on.parent == second.number
    assert graph.joins()["history"] == 1
    assert sampled_spans(graph) == sorted((*letters(text), END) for text in ("yes", "no", "so"))


def test_an_assistant_message_that_nobody_was_given_begins_a_chunk():
    graph = a_graph()
    answer(graph, [user("hi")], "yes")
    split = graph.place([user("hi"), assistant("yes."), user("more")])
    assert (split.parent, split.join, split.differs_at) == (None, "answer", 1)


def test_other_tools_begin_a_chunk():
    graph = a_graph()
    answer(graph, [user("hi")], "yes", [LOOK])
    messages = [user("hi"), assistant("yes"), user("more")]
    assert graph.place(messages, [LOOK]).join == "extension"
    other = Tool(name="look", description="closer")
    assert (graph.place(messages, [other]).parent, graph.place(messages, [other]).join) == (None, "tools")
    assert graph.place(messages).join == "tools"


def test_a_sub_agent_and_a_compacted_history_are_chunks_and_no_split():
    graph = a_graph()
    answer(graph, [user("hi")], "yes")
    answer(graph, [user("you are the helper")], "done")
    answer(graph, [user("so far: hi, yes")], "on")
    assert graph.joins() == {"opening": 3, "extension": 0, "tools": 0, "history": 0, "answer": 0}
    assert len(graph.paths(rows)) == 3


def test_arguments_that_a_client_wrote_anew_are_the_same_call():
    def calling(arguments):
        return assistant("", tool_calls=(ToolCall(id="c", name="look", arguments=arguments),))

    assert is_given(calling('{"b":2,"a":1}'), calling('{"a": 1, "b": 2}'))
    assert not is_given(calling('{"a": 2}'), calling('{"a": 1}'))
    assert not is_given(calling("{"), calling('{"a": 1}'))


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], GraphError),
        ([user("hi"), assistant("yes")], GraphError),
        ([user("hi"), assistant("yes"), Message(role="system", content="be good")], RenderError),
        ([user("hi" * 6000)], ConversationFull),
    ],
)
def test_a_call_that_is_refused_leaves_the_graph_as_it_was(messages, error):
    graph = a_graph()
    answer(graph, [user("hi")], "yes")
    before = (list(graph.nodes), graph.joins())
    with pytest.raises(error):
        graph.place(messages)
    assert (graph.nodes, graph.joins()) == before


def test_a_session_that_is_full_says_so():
    graph = a_graph(max_turns=1)
    answer(graph, [user("hi")], "yes")
    with pytest.raises(SessionFull, match="may have 1"):
        graph.place([user("hi")])


# --- against whole streams ----------------------------------------------------------------------------------------------

TEXTS = st.sampled_from(["a", "b", "ab"])
TOOLS = st.sampled_from([(), (LOOK,)])
ENDS = st.sampled_from([(END,), ()])


class WholeStreams:
    """The same by keeping everything of every turn: all its messages, all its ids, its rows' count."""

    def __init__(self):
        self.turns = []

    def prompt(self, messages, tools):
        """(number of the turn gone on from, prompt)."""
        fits = [
            (len(said), number)
            for number, (said, shown, _) in enumerate(self.turns)
            if shown == tools
            and said == messages[: len(said)]
            and not any(m.role == "assistant" for m in messages[len(said) :])
        ]
        if not fits:
            return None, PlainRenderer().opening(messages, tools)
        _, number = max(fits)
        said, _, ids = self.turns[number]
        return number, (*ids, *PlainRenderer().extension(messages[len(said) :], last_sampled=ids[-1]))

    def add(self, messages, tools, prompt, sampled, given):
        self.turns.append(([*messages, given], tools, (*prompt, *sampled)))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_graph_agrees_with_a_model_that_keeps_whole_streams(data):
    graph, naive = a_graph(), WholeStreams()
    for _ in range(data.draw(st.integers(1, 9), label="calls")):
        begin = data.draw(st.sampled_from(["new", "on", "again", "edited"]), label="kind")
        messages, tools = [user(data.draw(TEXTS))], data.draw(TOOLS)
        if begin != "new" and naive.turns:
            said, shown, _ = data.draw(st.sampled_from(naive.turns))
            tools = shown if data.draw(st.booleans()) else tools
            messages = said[:-1] if begin == "again" else [*said, user(data.draw(TEXTS))]
            if begin == "edited":
                at = data.draw(st.integers(0, len(messages) - 2))
                changed = assistant if messages[at].role == "assistant" else user
                messages = [*messages[:at], changed(data.draw(TEXTS)), *messages[at + 1 :]]
        parent, prompt = naive.prompt(messages, tools)
        placement = graph.place(messages, tools)
        assert (placement.parent, graph.ids_before(placement)) == (parent, prompt)
        text, end = data.draw(TEXTS), data.draw(ENDS)
        node = graph.add(placement, turn_at(graph, placement, text, end=end), given=assistant(text))
        naive.add(messages, tools, prompt, (*letters(text), *end), assistant(text))
        assert stream(graph, node) == list(naive.turns[-1][2])
    record = stitched(graph).record
    streams = {ids for _, _, ids in naive.turns}
    assert all(tuple(chunk.arrays().ids_N.tolist()) in streams for chunk in record.chunks)
    for chunk in record.chunks:  # a row that moved would name another position
        experts = chunk.arrays().routing_RLK[:, 0, 0]
        assert experts.tolist() == [position % 4 for position in range(len(experts))]
    assert sampled_spans(graph) == sorted(node.turn.sampled_ids for node in graph.nodes)
