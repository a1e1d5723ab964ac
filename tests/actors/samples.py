"""Well-formed events with dull values, for tests that care about a few fields."""

from t1actors.events import ActorUpdated, CriticUpdated, Payload, Tensor

EMPTY = Payload(digest="00", size_bytes=0, inline=b"")


def critic_updated(step: int) -> CriticUpdated:
    return CriticUpdated(
        step=step,
        weights_before="a",
        weights_after="b",
        optimizer_after="o",
        loss=0.1,
        loss_digest="l",
        gradient_digest="g",
        gradient_norm=1.0,
        explained_variance=0.2,
        state=EMPTY,
        snapshot=False,
        seconds=1.0,
    )


def actor_updated(step: int, version: str) -> ActorUpdated:
    return ActorUpdated(
        step=step,
        weights_before="a",
        weights_after=version,
        optimizer_after="o",
        behaviour_version="a",
        staleness=1,
        weights=Payload(digest=version, size_bytes=1, inline=b"w"),
        state=EMPTY,
        snapshot=False,
        old_logprobs_digest="q",
        loss=0.1,
        loss_digest="l",
        gradient_digest="g",
        gradient_norm=1.0,
        gap_mean=0.0,
        gap_max=0.0,
        engine_gap_mean=0.0,
        engine_gap_max=0.0,
        policy_movement_mean=0.0,
        policy_movement_max=0.0,
        ratio_mean=1.0,
        ratio_max=1.0,
        clip_share=0.0,
        kl=0.0,
        entropy=0.3,
        tokens=Tensor(dtype="float32", shape=(0, 5), data=EMPTY),
        seconds=1.0,
    )
