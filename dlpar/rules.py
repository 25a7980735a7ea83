"""What the fields of an experiment must satisfy together: each rule gives a sentence, or None."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlpar.schema import BadExperiment

if TYPE_CHECKING:
    from dlpar.experiment import Experiment

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
        from dlpar.sync.topology import one_way, receivers  # here: needs NumPy, most experiments do not

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
    from dlpar.platforms import PLATFORMS, WORKLOADS, is_path, nodes_of, workload

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
