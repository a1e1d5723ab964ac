import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from t1kernels.choice import default_kernels

from t1actors.engine.cache import Chunk, KeyValueCache, Slab
from t1actors.models.shape import NetworkShape

SHAPE = NetworkShape(
    vocabulary=10, hidden=8, layers=2, routed_layers=2, experts=2, experts_per_token=1, query_heads=4, key_heads=2,
    head_width=8, max_positions=128,
)  # fmt: skip
SLOTS, POSITIONS = 6, 80
KERNELS = default_kernels()


@st.composite
def slabs(draw):
    slots = draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=SLOTS, unique=True))
    starts = [draw(st.integers(0, POSITIONS - 1)) for _ in slots]
    return [
        Chunk(slot, start, draw(st.integers(1, min(9, POSITIONS - start))))
        for slot, start in zip(slots, starts, strict=True)
    ]


def plain_attention(query_QD, keys_TGD, values_TGD, scale):
    per_key = query_QD.shape[0] // keys_TGD.shape[1]
    heads = []
    for head, query_D in enumerate(query_QD):
        keys_TD, values_TD = keys_TGD[:, head // per_key], values_TGD[:, head // per_key]
        heads.append(torch.softmax(keys_TD @ query_D * scale, dim=0) @ values_TD)
    return torch.stack(heads)


@settings(deadline=None, max_examples=60)
@given(chunks=slabs(), seed=st.integers(0, 99))
def test_a_row_sees_its_own_slot_up_to_its_own_position_and_nothing_else(chunks, seed):
    generator = torch.Generator().manual_seed(seed)
    cache = KeyValueCache(SHAPE, slots=SLOTS, positions=POSITIONS)
    store = [torch.randn(SLOTS, POSITIONS, 2, 8, generator=generator) * 3 for _ in range(2)]
    everything = Slab(cache, [Chunk(slot, 0, POSITIONS) for slot in range(SLOTS)])
    everything(KERNELS, 1, torch.zeros(SLOTS * POSITIONS, 4, 8), *(t.reshape(-1, 2, 8) for t in store), 0.5)
    slab = Slab(cache, chunks)
    rows = sum(chunk.count for chunk in chunks)
    assert list(zip(slab.slots_N.tolist(), slab.positions_N.tolist(), strict=True)) == [
        (c.slot, c.start + i) for c in chunks for i in range(c.count)
    ]
    assert [(slab.slots_N[r], slab.positions_N[r]) for r in slab.last_rows] == [
        (c.slot, c.start + c.count - 1) for c in slab.chunks
    ]
    query, key, value = (torch.randn(rows, heads, 8, generator=generator) for heads in (4, 2, 2))
    attended = slab(KERNELS, 1, query, key, value, 0.5)
    keys, values = (t.clone() for t in store)
    keys[slab.slots_N, slab.positions_N], values[slab.slots_N, slab.positions_N] = key, value
    for row, (slot, position) in enumerate(zip(slab.slots_N, slab.positions_N, strict=True)):
        wanted = plain_attention(query[row], keys[slot, : position + 1], values[slot, : position + 1], 0.5)
        torch.testing.assert_close(attended[row], wanted, rtol=1e-4, atol=1e-4)
