"""What a pipeline and the rest of an experiment must satisfy together: each rule gives a sentence, or None."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlpar.split.schedules import SCHEDULES

if TYPE_CHECKING:
    from dlpar.experiment import Experiment


def layers_of(e: Experiment) -> int | None:
    """Layers with weights a pipeline can be cut between; None where a workload says how many."""
    if has_outline(e):
        return None
    depth = e.model.depth
    return {"linear": 1, "logistic": 1, "mlp": depth + 1, "cnn": depth + 1, "transformer": depth + 3}[
        e.model.name
    ]


def has_outline(e: Experiment) -> bool:
    """Whether nothing is computed, and a workload's layers stand for the model's."""
    return e.cluster.stand_in_for is not None and e.cluster.messages == "sizes"


def parts_of(e: Experiment) -> int:
    """Pieces a pipeline's model is cut into: stages times chunks."""
    stages = e.split.axes(e.workers)["pipeline"]
    return stages * (e.split.chunks if SCHEDULES[e.split.schedule].has_chunks and stages > 1 else 1)


def _every_part_has_layers(e: Experiment) -> str | None:
    layers = layers_of(e)
    return None if layers is None else too_few_layers(e, e.model.name, layers)


def too_few_layers(e: Experiment, model: str, layers: int) -> str | None:
    """A complaint if a pipeline has more parts than a model has layers with weights."""
    if e.split.kind not in ("pipeline", "hybrid") or parts_of(e) <= layers:
        return None
    stages, of = (
        e.split.axes(e.workers)["pipeline"],
        f"with model {model}, which has {layers} layers with weights,",
    )
    if stages > layers:
        return f"split.stages: got {stages}, allowed {of} is at most {layers}"
    return (
        f"split.chunks: got {e.split.chunks}, allowed {of} and {stages} stages is at most {layers // stages}"
    )


def _numbers_make_up_the_model(e: Experiment) -> str | None:
    how, parts, layers = e.split.partition, parts_of(e), layers_of(e)
    if how in ("balanced", "measured"):
        return None
    numbers = [int(n) if n.strip().isdigit() else 0 for n in how.split(",")]
    if len(numbers) == parts and min(numbers) > 0 and (layers is None or sum(numbers) == layers):
        return None
    total = "all layers" if layers is None else f"{layers}, the model's layers with weights"
    return f"split.partition: got {how!r}, allowed is balanced, measured, or {parts} numbers from 1 that add up to {total}"


def _every_microbatch_has_a_sample(e: Experiment) -> str | None:
    least = e.local_batch(e.replicas - 1)
    if e.split.microbatches > least:
        got = e.split.microbatches
        return f"split.microbatches: got {got}, allowed with {least} samples a replica is at most {least}"
    return None


def _rounds_are_whole(e: Experiment) -> str | None:
    stages = e.split.axes(e.workers)["pipeline"]
    if SCHEDULES[e.split.schedule].has_chunks and e.split.microbatches % stages:
        return (
            f"split.microbatches: got {e.split.microbatches}, allowed with schedule {e.split.schedule} and {stages} "
            f"stages is a multiple of {stages}: micro-batches go round in groups of as many as stages"
        )
    return None


def _nothing_waits_for_the_pipeline_to_drain(e: Experiment) -> str | None:
    """Without a flush each batch is a step, and forward passes run ahead of the updates."""
    if SCHEDULES[e.split.schedule].has_flush:
        return None
    of = f"with schedule {e.split.schedule}"
    if e.split.microbatches != 1:
        got = e.split.microbatches
        return f"split.microbatches: got {got}, allowed {of} is 1: each batch goes through whole, and moves the weights"
    if e.model.name == "transformer" and not has_outline(e):
        return (
            f"model.name: got 'transformer', allowed {of} is another: its first and last layer share a weight, "
            f"so that these stages would wait for each other at every update"
        )
    if e.averaging.method != "none":
        got = e.averaging.method
        return f"averaging.method: got {got!r}, allowed {of} is none: stages hold weights of different steps"
    if e.free_running:
        name = "exchange" if e.sync.scheme == "gossip" else "consistency"
        got, why = getattr(e.sync, name), "batches are read ahead"
        return f"sync.{name}: got {got!r}, allowed {of} is one in which replicas do the same steps: {why}"
    return None


def _shared_weight_moves_alike(e: Experiment) -> str | None:
    """A transformer's first and last stage hold one weight: what happens to it must not depend on their others."""
    codec = e.compression.codec
    if e.model.name != "transformer" or has_outline(e) or parts_of(e) == 1 or codec not in ("onebit", "topk"):
        return None
    return (
        f"compression.codec: got {codec!r}, allowed with split {e.split} of a transformer is none, fp16 or bf16: "
        f"its first and last stage share a weight, and would lose different digits of its gradient"
    )


PIPELINE_RULES = (
    _every_part_has_layers, _numbers_make_up_the_model, _every_microbatch_has_a_sample, _rounds_are_whole,
    _nothing_waits_for_the_pipeline_to_drain, _shared_weight_moves_alike,
)  # fmt: skip


def of_pipelines(e: Experiment) -> str | None:
    """The first complaint of these rules, about an experiment whose model is a pipeline."""
    if e.split.kind not in ("pipeline", "hybrid"):
        return None
    return next((complaint for rule in PIPELINE_RULES if (complaint := rule(e))), None)
