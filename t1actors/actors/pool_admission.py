"""How the run's pool is admitted to its machine: alone, or with the pools of other runs."""

from __future__ import annotations

from pathlib import Path

from t1actors.runtime.actor import ActorContext
from t1actors.sandbox.admission import Admission
from t1actors.sandbox.node_slots import NodeSlots
from t1actors.sandbox.shared_bucket import SharedTokenBucket

OWN = "admission"
"""In the run's directory, where ``sandbox.node_dir`` names no other."""


def admission(context: ActorContext) -> Admission:
    """The rate holds through restarts of the pool; with a shared ``sandbox.node_dir``, over all pools of the machine."""
    config = context.config.sandbox
    directory = Path(config.node_dir) if config.node_dir else context.run_dir / OWN
    bucket = SharedTokenBucket(directory / "bucket", rate_per_s=config.rate_per_s, burst=config.burst)
    node = None
    if config.node_max_live:
        owner = str(context.run_dir.absolute())
        node = NodeSlots(directory, owner=owner, max_live=config.node_max_live, lease_s=config.lease_s)
    return Admission(bucket, config.max_live, monotonic=context.monotonic, node=node)
