"""What the fields of an experiment must satisfy together: each rule gives a sentence, or None."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dlpar.config.schema import BadExperiment
from dlpar.split.halo import Window, most
from dlpar.split.schedules import SCHEDULES

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


FITS = {
    "linear": ("diabetes",),
    "logistic": ("digits", "docstrings", "mnist", "cifar10"),
    "mlp": ("digits", "diabetes", "mnist", "cifar10"),
    "cnn": ("digits", "mnist", "cifar10"),
    "transformer": ("docstrings",),
}
"""Data sets each model can read."""

FROM_FILES = ("mnist", "cifar10")
"""Data sets that do not come with dlpar or its libraries."""


def _model_fits_data(e: Experiment) -> str | None:
    fits = FITS[e.model.name]
    if e.data.name not in fits:
        return f"data: got {e.data.name!r}, allowed with model {e.model.name} is {' or '.join(fits)}"
    if e.shards == "by_label" and (e.data.name == "diabetes" or e.model.name == "transformer"):
        return f"shards: got 'by_label', allowed with {e.model.name} on {e.data.name} is iid or uneven: it has no labels"
    return None


def _batch_reaches_every_worker(e: Experiment) -> str | None:
    if e.scaling == "strong" and e.batch < e.workers:
        return (
            f"batch: got {e.batch}, allowed with {e.workers} workers and strong scaling "
            f"is at least {e.workers}: every worker needs a sample"
        )
    return None


def _model_is_whole(e: Experiment) -> str | None:
    model = e.model
    if model.name == "transformer" and model.width % model.heads:
        return f"model.heads: got {model.heads}, allowed is a divisor of the width {model.width}"
    if model.norm != "none" and model.name not in ("mlp", "cnn"):
        return f"model.norm: got {model.norm!r}, allowed with model {model.name} is none"
    fraction = getattr(e.sync, "fraction", 1.0)
    if model.norm != "none" and fraction < 1:
        return f"model.norm: got {model.norm!r}, allowed with fraction {fraction:g} is none: a worker may sample nothing"
    return None


def _statistics_exist(e: Experiment) -> str | None:
    """Batch normalisation of single numbers has no variance; an image holds many numbers, a row of an mlp one."""
    if e.model.norm == "none" or e.model.name != "mlp":
        return None
    # The smallest of uneven shares is about 1 of 1 + 2 + ... + workers.
    shares = (
        {"uneven": e.workers * (e.workers + 1) // 2}.get(e.shards, e.workers)
        if e.model.norm == "batch"
        else 1
    )
    if e.global_batch >= 2 * shares:
        return None
    least = 2 * shares if e.scaling == "strong" else -(-2 * shares // e.workers)
    return (
        f"batch: got {e.batch}, allowed with norm {e.model.norm}, {e.workers} workers, {e.scaling} scaling "
        f"and {e.shards} shards is at least {least}: a variance needs two samples"
    )


def _carrier_fits_device(e: Experiment) -> str | None:
    if e.cluster.carrier == "nccl" and e.cluster.device == "cpu":
        return "cluster.carrier: got 'nccl', allowed with device cpu is auto, mpi or gloo"
    if e.cluster.carrier == "gloo" and e.cluster.device == "cuda":
        return "cluster.carrier: got 'gloo', allowed with device cuda is auto, mpi or nccl"
    return None


def _servers_fit(e: Experiment) -> str | None:
    sync = e.sync
    if sync.scheme != "ps":
        return None
    if sync.groups > e.workers:
        return f"sync.groups: got {sync.groups}, allowed with {e.workers} workers is at most {e.workers}"
    if sync.groups and sync.consistency != "bsp" and e.workers % sync.groups:
        return (
            f"sync.groups: got {sync.groups}, allowed with {e.workers} workers and {sync.consistency} "
            f"is a divisor of {e.workers}: groups that run free of each other count alike"
        )
    if sync.staleness_aware and e.optimizer not in ("sgd", "momentum"):
        return (
            f"optimizer: got {e.optimizer!r}, allowed with staleness_aware is sgd or momentum: "
            f"the others undo what divides a gradient"
        )
    if sync.consistency == "softsync" and sync.softsync > (sync.groups or e.workers):
        clients = f"{sync.groups} groups" if sync.groups else f"{e.workers} workers"
        return f"sync.softsync: got {sync.softsync}, allowed with {clients} is at most {sync.groups or e.workers}"
    if e.steps % sync.push_every:
        return (
            f"sync.push_every: got {sync.push_every}, allowed with {e.steps} steps is a divisor of {e.steps}"
        )
    if sync.push_every > 1 and e.averaging.method != "none":
        return f"sync.push_every: got {sync.push_every}, allowed with averaging {e.averaging.method} is 1: its period does that"
    return None


def _graph_is_of_the_workers(e: Experiment) -> str | None:
    sync = e.sync
    if sync.scheme != "gossip":
        return None
    if sync.exchange == "random":  # who meets whom follows from no graph
        if 1 < e.workers <= sync.peers:
            return (
                f"sync.peers: got {sync.peers}, allowed with {e.workers} workers is at most {e.workers - 1}"
            )
        return None
    if (sync.topology == "edges") != bool(sync.edges):
        return f"sync.edges: got {len(sync.edges)} edges, allowed is a list of them with topology edges, else none"
    loop = next((edge for edge in sync.edges if edge[0] == edge[1]), None)
    if loop:
        return f"sync.edges: got {loop[0]}-{loop[1]}, allowed is two different workers"
    stranger = next((worker for edge in sync.edges for worker in edge if not 0 <= worker < e.workers), None)
    if stranger is not None:
        return f"sync.edges: got worker {stranger}, allowed with {e.workers} workers is 0 to {e.workers - 1}"
    if e.workers == 1:
        return None
    if sync.topology == "random" and (sync.degree >= e.workers or sync.degree * e.workers % 2):
        return (
            f"sync.degree: got {sync.degree}, allowed with {e.workers} workers is below {e.workers}, "
            f"and degree times workers even"
        )
    if sync.exchange == "push_sum" and sync.topology == "edges":
        from dlpar.graphs import one_way, receivers  # here: needs NumPy, most experiments do not

        if pair := one_way(receivers(sync, e.workers, e.seed)):
            return (
                f"sync.edges: got {pair[0]}-{pair[1]} and no way back, allowed with push_sum is edges "
                f"with a way back: a worker that only gives runs out of weight"
            )
    return None


def _averaging_fits(e: Experiment) -> str | None:
    method, sync = e.averaging.method, e.sync
    if method == "none":
        return None
    if sync.scheme == "hogwild":
        return f"averaging.method: got {method!r}, allowed with hogwild is none: its workers share one model"
    if sync.scheme == "gossip" and method != "local":
        return f"averaging.method: got {method!r}, allowed with gossip is none or local: it has no centre"
    if getattr(sync, "regularizer", "none") != "none":
        return f"sync.regularizer: got {sync.regularizer!r}, allowed with averaging is none: the driver sees models, not losses"
    if getattr(sync, "overlap", False):
        return "sync.overlap: got True, allowed with averaging is False: what is exchanged is not a gradient"
    if e.steps % e.averaging.period:
        return f"averaging.period: got {e.averaging.period}, allowed with {e.steps} steps is a divisor of {e.steps}"
    return None


def _compression_fits(e: Experiment) -> str | None:
    codec, sync = e.compression.codec, e.sync
    if codec == "none":
        return None
    if sync.scheme in ("gossip", "hogwild", "own"):
        return f"compression.codec: got {codec!r}, allowed with {sync} is none: it exchanges no gradients of ours"
    if sync.scheme == "ring" and sync.allreduce != "ring":
        return (
            f"sync.allreduce: got {sync.allreduce!r}, allowed with compression {codec} is ring: "
            f"compressed gradients do not add up on their way, so they go round a ring whole"
        )
    return None


def _delays_are_of_workers(e: Experiment) -> str | None:
    for name in ("straggler", "stall"):
        for worker, number in getattr(e.delays, name).items():
            if not 0 <= worker < e.workers:
                return f"delays.{name}: got worker {worker}, allowed with {e.workers} workers is 0 to {e.workers - 1}"
            if name == "straggler" and not 1 <= number <= 1000:
                return f"delays.straggler: got {number:g}, allowed is a factor from 1 to 1000"
            if name == "stall" and number > 600:
                return f"delays.stall: got {number:g}, allowed is at most 600 seconds"
    return None


def _synchronised_statistics_need_lockstep(e: Experiment) -> str | None:
    if e.model.norm == "sync_batch" and (e.sync.scheme == "ps" or e.free_running):
        return f"model.norm: got 'sync_batch', allowed with {e.sync} is none or batch: workers do not wait for each other"
    return None


def _own_brings_code(e: Experiment) -> str | None:
    if e.sync.scheme == "own" and not e.sync.code:
        return "sync.scheme: got 'own', allowed is a function or class: Experiment(sync=my_scheme)"
    return None


def _hogwild_shares_memory(e: Experiment) -> str | None:
    if e.sync.scheme == "hogwild" and e.optimizer != "sgd":
        return f"optimizer: got {e.optimizer!r}, allowed with hogwild is sgd: the others keep a state that writers would share"
    if e.sync.scheme == "hogwild" and e.cluster.device == "cuda":
        return (
            "cluster.device: got 'cuda', allowed with hogwild is auto or cpu: its workers share host memory"
        )
    if e.sync.scheme == "hogwild" and e.cluster.carrier == "nccl":
        return "cluster.carrier: got 'nccl', allowed with hogwild is auto, mpi or gloo: its workers share host memory"
    if e.sync.scheme == "hogwild" and e.cluster.hostfile is not None:
        return f"cluster.hostfile: got {e.cluster.hostfile!r}, allowed with hogwild is nothing: its workers share a machine"
    return None


MOST = {"real": 64, "paced": 64, "simulated": 4096}
"""Workers of one job in each world: processes take memory, simulated ranks next to none."""

SERVERS = 32
"""Servers of one job, and leaves, where each is a process."""

THREADS = 256
"""Simulated workers that really compute: each has a thread."""


def _world_holds_them(e: Experiment) -> str | None:
    cluster, most = e.cluster, MOST[e.cluster.world]
    if e.workers > most:
        return f"workers: got {e.workers}, allowed in the {cluster.world} world is at most {most}"
    for name in ("servers", "groups") if e.sync.scheme == "ps" and cluster.world != "simulated" else ():
        if (count := getattr(e.sync, name)) > SERVERS:
            return f"sync.{name}: got {count}, allowed in the {cluster.world} world is at most {SERVERS}"
    if cluster.world == "simulated" and cluster.messages == "values" and e.workers > THREADS:
        return f"workers: got {e.workers}, allowed where simulated ranks really compute is at most {THREADS}; messages sizes takes {most}"
    if cluster.world != "simulated" and cluster.messages != "values":
        return f"cluster.messages: got {cluster.messages!r}, allowed in the {cluster.world} world is values"
    if cluster.messages == "sizes" and e.model.norm == "sync_batch":
        return "model.norm: got 'sync_batch', allowed with messages sizes is none or batch: the forward pass exchanges nothing there"
    if cluster.world == "real" and cluster.stand_in_for is not None:
        return f"cluster.stand_in_for: got {cluster.stand_in_for!r}, allowed in the real world is nothing: what is charged there is what is done"
    if cluster.world != "real" and (cluster.device == "cuda" or cluster.carrier not in ("auto", "mpi")):
        name, value = ("device", "cuda") if cluster.device == "cuda" else ("carrier", cluster.carrier)
        return f"cluster.{name}: got {value!r}, allowed in the {cluster.world} world is auto: its platform is on paper"
    if cluster.world != "real" and cluster.hostfile is not None:
        why = "one process holds all ranks" if cluster.world == "simulated" else "its ranks share a machine"
        return f"cluster.hostfile: got {cluster.hostfile!r}, allowed in the {cluster.world} world is nothing: {why}"
    if e.sync.scheme == "hogwild" and (cluster.world == "paced" or cluster.messages == "sizes"):
        world = "paced world" if cluster.world == "paced" else "simulated world without values"
        return (
            f"sync.scheme: got 'hogwild', allowed in the {world} is another: what races do is not known there"
        )
    return None


def _platform_holds_them(e: Experiment) -> str | None:
    """Of platforms known by name; files are looked at when a job is launched."""
    cluster = e.cluster
    if cluster.world == "real":
        return None
    from dlpar.worlds.platforms import PLATFORMS, WORKLOADS, is_path, nodes_of, workload

    try:
        if (
            cluster.platform is None
            or cluster.platform in PLATFORMS
            or (not is_path(cluster.platform) and cluster.platform != "here")
        ):
            nodes_of(e)
        if cluster.stand_in_for is not None and (
            cluster.stand_in_for in WORKLOADS or not is_path(cluster.stand_in_for)
        ):
            workload(cluster.stand_in_for)
    except BadExperiment as error:
        return str(error)
    return None


RULES_OF_ALL_RANKS = (_world_holds_them, _platform_holds_them, _model_is_whole, _delays_are_of_workers)
"""What holds for all ranks of a job together."""

RULES = (
    *RULES_OF_ALL_RANKS, _model_fits_data, _batch_reaches_every_worker, _statistics_exist, _carrier_fits_device,
    _servers_fit, _graph_is_of_the_workers, _averaging_fits, _compression_fits,
    _synchronised_statistics_need_lockstep, _own_brings_code, _hogwild_shares_memory,
)  # fmt: skip
"""What holds for replicas and their servers."""


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


SPLIT_RULES = (
    _products_in_bfloat16, _sizes_multiply, _parts_have_servers, _parts_agree, _parts_begin_alike, _tensor_divides, _layers_send_activations,
    _redundancy_is_of_neurons, _images_are_cut, _same_weights_move_alike,
    _zero_halves_an_allreduce, _every_microbatch_has_samples, of_pipelines,
)  # fmt: skip
