"""Fields of an experiment that mean something only beside some values of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MEANT_WITH = {
    "momentum": ("optimizer", "momentum"),
    "model.width": ("model.name", "mlp", "cnn", "transformer"),
    "model.depth": ("model.name", "mlp", "cnn", "transformer"),
    "model.heads": ("model.name", "transformer"),
    "model.norm": ("model.name", "mlp", "cnn"),
    "data.folder": ("data.name", "mnist", "cifar10"),
    "data.context": ("data.name", "docstrings"),
    "data.reading": ("data.name", "mnist"),
    "split.redundancy": ("model.name", "mlp"),
    "split.chunks": ("split.schedule", "interleaved"),
    "sync.node_size": ("sync.allreduce", "hierarchical"),
    "sync.depth": ("sync.reduce", "sum", "mean"),
    "sync.regularization": ("sync.regularizer", "l1", "l2"),
    "sync.staleness": ("sync.consistency", "ssp"),
    "sync.staleness_aware": ("sync.consistency", "ssp", "asp", "softsync"),
    "sync.softsync": ("sync.consistency", "softsync"),
    "sync.topology": ("sync.exchange", "neighbours", "pairwise", "push_sum"),
    "sync.edges": ("sync.topology", "edges"),
    "sync.degree": ("sync.topology", "random"),
    "sync.peers": ("sync.exchange", "random"),
    "averaging.period": ("averaging.method", "local", "elastic", "block_momentum"),
    "averaging.elasticity": ("averaging.method", "elastic"),
    "averaging.block_momentum": ("averaging.method", "block_momentum"),
    "compression.keep": ("compression.codec", "topk"),
    "delays.delay_ms": ("delays.kind", "constant", "exponential", "gamma"),
    "delays.delay_cv": ("delays.kind", "gamma"),
    "cluster.platform": ("cluster.world", "paced", "simulated"),
    "cluster.stand_in_for": ("cluster.world", "paced", "simulated"),
    "cluster.messages": ("cluster.world", "simulated"),
    "cluster.placement": ("cluster.world", "paced", "simulated"),
    "cluster.device": ("cluster.world", "real"),
    "cluster.carrier": ("cluster.world", "real"),
    "cluster.hostfile": ("cluster.world", "real"),
    "cluster.threads": ("cluster.world", "real", "paced"),
}
"""Path of each such field, with the other field and its values; beside other values it changes no figure of a run."""


def missing(path: str, value_of: Callable[[str], Any]) -> tuple[str, list[str]] | None:
    """Find what a field lacks to mean something.

    Parameters
    ----------
    path : str
        Of the field: ``sync.staleness``.
    value_of : callable
        The value of a field, by its path.

    Returns
    -------
    tuple or None
        Path of the field that would have to be another, and the values it may have; None where nothing is missing.
    """
    beside, *values = MEANT_WITH.get(path, ("",))
    if not beside:
        return None
    return missing(beside, value_of) if value_of(beside) in values else (beside, values)
