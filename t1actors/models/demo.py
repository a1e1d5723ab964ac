"""The demonstration's model: 0.95 M parameters (0.35 M active), small enough to learn on two CPU cores."""

from __future__ import annotations

from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig

VOCABULARY = 448
"""A model this small learns to copy from 448 words, and did not from 1,024."""
END_ID = 4


def tiny_config(vocabulary: int = VOCABULARY) -> Qwen3MoeConfig:
    """The architecture, for a tokenizer of ``vocabulary`` words."""
    return Qwen3MoeConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=128,
        moe_intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # type: ignore[call-arg]  (an attribute of the architecture, not of the dataclass)
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        router_aux_loss_coef=0.0,  # a balance loss would fight the replay (T1 section 4)
        eos_token_id=END_ID,
    )
