"""What a split and the rest of an experiment must satisfy together: each rule gives a sentence, or None."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dlpar.split.pipeline_rules import of_pipelines
from dlpar.split.window import Window, most

if TYPE_CHECKING:
    from dlpar.experiment import Experiment


def ways(e: Experiment) -> int:
    """Ranks that share one model."""
    return math.prod(e.split.axes(e.workers).values())


def _sizes_multiply(e: Experiment) -> str | None:
    axes = e.split.axes(e.workers)
    if e.workers % ways(e):
        product = " × ".join(f"{size} ({axis})" for axis, size in axes.items())
        name, size = max(axes.items(), key=lambda axis: axis[1])
        field = {"pipeline": "stages"}.get(name, name)
        return f"split.{field}: got {size}, allowed with {e.workers} workers is sizes whose product divides {e.workers}, not {product}"
    named = getattr(e.split, "order", "")
    if named and set(named.split(",")) != {"data", *axes}:
        return f"split.order: got {named!r}, allowed with split {e.split} is each of {', '.join(['data', *axes])} once"
    return None


def _parts_have_servers(e: Experiment) -> str | None:
    if e.sync.scheme != "ps" or ways(e) == 1:
        return None
    for name in ("servers", "groups"):
        number = getattr(e.sync, name)
        if number % ways(e):
            return (
                f"sync.{name}: got {number}, allowed with a model on {ways(e)} ranks is a multiple of {ways(e)}: "
                f"each part has {'servers' if name == 'servers' else 'leaves'} of its own"
            )
    return None


def _parts_agree(e: Experiment) -> str | None:
    """What a scheme decides for one part of a model, it must decide for all."""
    if ways(e) == 1:
        return None
    if e.sync.scheme == "hogwild":
        return f"sync.scheme: got 'hogwild', allowed with split {e.split} is another: its workers share one whole model"
    if getattr(e.sync, "tolerance", 0.0):
        return f"sync.tolerance: got {e.sync.tolerance:g}, allowed with split {e.split} is 0: each part would stop by itself"
    if e.model.norm != "none":
        return f"model.norm: got {e.model.norm!r}, allowed with split {e.split} is none"
    if getattr(e.sync, "overlap", False) and e.split.kind in ("pipeline", "hybrid"):
        return f"sync.overlap: got True, allowed with split {e.split} is False: gradients are whole when the last micro-batch is"
    return None


def _parts_begin_alike(e: Experiment) -> str | None:
    """A random start is drawn rank by rank: that suits ranks that hold all weights."""
    if getattr(e.sync, "start", "same") == "same" or ways(e) == 1 or e.split.kind == "spatial":
        return None
    return (
        f"sync.start: got {e.sync.start!r}, allowed with split {e.split} is same: parts of a model would draw the same "
        f"numbers, and copies of a weight different ones"
    )


def _tensor_divides(e: Experiment) -> str | None:
    """What a tensor split cuts in equal pieces, it must divide."""
    ranks = e.split.axes(e.workers).get("tensor", 1)
    if ranks == 1:
        return None
    cuts = {
        "mlp": ("width", e.model.width), "transformer": ("heads", e.model.heads), "cnn": ("channels", e.model.channels),
    }  # fmt: skip
    if e.model.name not in cuts:
        return f"split.tensor: got {ranks}, allowed with model {e.model.name} is 1: it is a single layer"
    what, number = cuts[e.model.name]
    if number % ranks:
        return f"split.tensor: got {ranks}, allowed is a divisor of the model's {what}, {number}"
    return None


def _layers_send_activations(e: Experiment) -> str | None:
    """Messages within forward and backward passes: of numbers that ranks have computed."""
    tensor = e.split.axes(e.workers).get("tensor", 1) > 1
    if not tensor and e.split.kind != "spatial":
        return None
    if e.cluster.messages == "sizes":
        return f"cluster.messages: got 'sizes', allowed with split {e.split} is values: layers send what they compute"
    if e.cluster.stand_in_for is not None:
        return (
            f"cluster.stand_in_for: got {e.cluster.stand_in_for!r}, allowed with split {e.split} is nothing: "
            f"it sends activations, and a workload lists parameters"
        )
    if tensor and e.compression.codec != "none":
        return (
            f"compression.codec: got {e.compression.codec!r}, allowed with split {e.split} is none: "
            f"ranks that hold copies of a weight would lose different digits of its gradient"
        )
    return None


def _redundancy_is_of_neurons(e: Experiment) -> str | None:
    redundancy = getattr(e.split, "redundancy", 0.0)
    if redundancy and e.model.name != "mlp":
        return f"split.redundancy: got {redundancy:g}, allowed with model {e.model.name} is 0: neurons of an mlp overlap"
    return None


IMAGES = {"digits": 8, "mnist": 28, "cifar10": 32}
"""Height and width of the images a cnn sees."""


def _images_are_cut(e: Experiment) -> str | None:
    """A spatial split is of images, in pieces large enough at every layer."""
    if e.split.kind != "spatial":
        return None
    if e.model.name != "cnn":
        return f"model.name: got {e.model.name!r}, allowed with split {e.split} is cnn: it cuts images"
    if e.model.norm != "none":
        return f"model.norm: got {e.model.norm!r}, allowed with split {e.split} is none"
    if e.data.name not in IMAGES:
        return None  # another rule says what a cnn can read
    largest = most_pieces(IMAGES[e.data.name], e.model.depth)
    for axis, pieces in e.split.axes(e.workers).items():
        if pieces > largest:
            return (
                f"split.{axis}: got {pieces}, allowed with a cnn of depth {e.model.depth} on {e.data.name} is at most "
                f"{largest}: no piece is empty, and halos come from the next piece, at every layer"
            )
    return None


def most_pieces(size: int, depth: int) -> int:
    """The most pieces one axis of a cnn's images can be cut into: convolutions of 3, poolings of 2 from 8 wide."""
    largest = size
    for _ in range(depth):
        largest = min(largest, most(Window(3, padding=1), size))
        if size >= 8:
            largest, size = min(largest, most(Window(2, stride=2), size)), size // 2
    return largest


def _same_weights_move_alike(e: Experiment) -> str | None:
    """Ranks of a spatial split hold the same weights: what moves them must not depend on who comes first."""
    if e.split.kind != "spatial":
        return None
    if getattr(e.sync, "overlap", False):
        return f"sync.overlap: got True, allowed with split {e.split} is False: gradients are first summed over pieces"
    if e.free_running and ways(e) > 1 and e.replicas > 1:
        name, allowed = ("exchange", "neighbours") if e.sync.scheme == "gossip" else ("consistency", "bsp")
        got = getattr(e.sync, name)
        return f"sync.{name}: got {got!r}, allowed with split {e.split} is {allowed}: its ranks hold the same weights"
    return None


def _zero_halves_an_allreduce(e: Experiment) -> str | None:
    """What is shared out by ZeRO moves in the two halves of an all-reduce, and in nothing else."""
    zero = getattr(e.split, "zero", 0)
    if not zero:
        return None
    allowed = f"allowed with zero {zero} is"
    if e.sync.scheme != "ring":
        return f"sync.scheme: got {e.sync.scheme!r}, {allowed} ring: its all-reduce comes in two halves"
    if e.sync.allreduce not in ("ring", "library"):
        return (
            f"sync.allreduce: got {e.sync.allreduce!r}, {allowed} ring or library: others have no two halves"
        )
    if e.averaging.method != "none":
        return f"averaging.method: got {e.averaging.method!r}, {allowed} none: no worker can step by itself"
    if e.compression.codec != "none":
        return f"compression.codec: got {e.compression.codec!r}, {allowed} none: codes do not add up on their way"
    if zero == 3 and e.sync.overlap:
        return (
            f"sync.overlap: got True, {allowed} False: gradients are summed between layers, not beside them"
        )
    if zero == 3 and e.cluster.messages == "sizes":
        return f"cluster.messages: got 'sizes', {allowed} values: weights travel between layers that compute"
    return None


def _every_microbatch_has_samples(e: Experiment) -> str | None:
    if e.split.kind != "data":
        return None
    # The smallest of uneven shares is about 1 of 1 + 2 + ... + workers.
    parts = e.workers * (e.workers + 1) // 2 if e.shards == "uneven" else e.workers
    share = e.global_batch // parts
    most = max(1, share // (2 if e.model.norm != "none" else 1))  # a variance needs two samples
    if e.split.microbatches > most:
        return (
            f"split.microbatches: got {e.split.microbatches}, "
            f"allowed with norm {e.model.norm} and {share} samples of a worker is at most {most}"
        )
    return None


def _products_in_bfloat16(e: Experiment) -> str | None:
    if e.precision == "full":
        return None
    if e.dtype == "float64":
        return f"precision: got {e.precision!r}, allowed with dtype float64 is full: mixed precision is of float32 and bfloat16"
    if getattr(e.split, "redundancy", 0.0):
        return f"precision: got {e.precision!r}, allowed with redundancy is full: copies of neurons travel as they are"
    if getattr(e.split, "zero", 0) == 3:
        return f"precision: got {e.precision!r}, allowed with zero 3 is full: weights in bfloat16 would outlive those that are let go"
    return None


RULES = (
    _products_in_bfloat16, _sizes_multiply, _parts_have_servers, _parts_agree, _parts_begin_alike, _tensor_divides, _layers_send_activations,
    _redundancy_is_of_neurons, _images_are_cut, _same_weights_move_alike,
    _zero_halves_an_allreduce, _every_microbatch_has_samples, of_pipelines,
)  # fmt: skip
