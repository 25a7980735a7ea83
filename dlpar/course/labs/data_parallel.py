"""Lab 07: the communication that a data-parallel step hides, the state it shares out, and the data each rank reads."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.course import platform_file
from dlpar.course.labs.scaling import GPUS, computing_s, sizes_only
from dlpar.course.rehearse import Row, Shown, accuracy, apart, measured, most_held, step_ms, step_s
from dlpar.jobs.launch import spmd
from dlpar.jobs.run import Run

if TYPE_CHECKING:
    from dlpar.comm import Comm

ONE_GPU_EACH = platform_file("one-gpu-each")
"""A P100 in each machine, 25 GbE with RoCE: every rank has a link of its own, so that closed forms are exact."""

CLOUD = platform_file("cloud")
"""A P100 in each machine, 10 GbE, and 100 us for a message: assumed, as in a rented network."""


def overlapped_training() -> Experiment:
    """Eight GPUs on two machines keep VGG-16's time, and send while they compute.

    The bytes and FLOPs of VGG-16 are spread over the layers of a small network, and each of these is a bucket.
    """
    training = dict(workers=8, batch=64, scaling="weak", steps=12, evaluate_every=1000)
    sync = {"scheme": "ring", "overlap": True, "bucket_mb": 0.02}
    cluster = {"world": "simulated", "platform": GPUS, "stand_in_for": "vgg16", "threads": 1}
    return Experiment(model={"width": 64, "depth": 8}, **training, sync=sync, cluster=cluster)


def _without_and_with(experiment: Experiment) -> list[Experiment]:
    """The same without overlap, and with it."""
    return [experiment.replace(sync={"overlap": overlap}) for overlap in (False, True)]


def paced_overlap() -> list[Experiment]:
    """Four real processes that keep the GPUs' time, without overlap and with it."""
    cluster = {"world": "paced", "platform": ONE_GPU_EACH}
    return _without_and_with(overlapped_training().replace(workers=4, steps=2, cluster=cluster))


def _on_16(workload: str, platform: str, **fields: Any) -> Experiment:
    """Two steps of 16 simulated GPUs; messages carry sizes only."""
    return sizes_only(workload, platform, **{"workers": 16, "steps": 2, "sync": "ring", **fields})


def overlap_hides_everything() -> dict[str, Experiment]:
    """Four networks on 16 GPUs, without overlap and with it."""
    networks = (
        ("VGG-16", "vgg16", 64), ("Inception V3", "inception3", 64), ("ResNet-101", "resnet101", 64),
        ("BERT-large", "bert-large", 8),
    )  # fmt: skip
    return {
        f"{title}, overlap {how}": each
        for title, name, batch in networks
        for how, each in zip(("off", "on"), _without_and_with(_on_16(name, ONE_GPU_EACH, batch=batch)))
    }


def _some_stays_exposed(runs: dict[str, Run]) -> Shown:
    exposed = {}
    for title, run in runs.items():
        asked = run.experiment
        exposed[title] = step_s(run) / computing_s(asked.cluster.stand_in_for, asked.batch, ONE_GPU_EACH) - 1
    on = {title.partition(",")[0]: share for title, share in exposed.items() if title.endswith("on")}
    held = on["VGG-16"] > 0.2 and all(share < exposed[f"{name}, overlap off"] for name, share in on.items())
    return held, "messages lengthen a step by: " + ", ".join(f"{name} {on[name]:.0%}" for name in on)


def faster_links() -> dict[str, Experiment]:
    """VGG-16, overlapped, on three links."""
    slow, fast = platform_file("p100-each-10gbe"), platform_file("p100-each-100gb-ib")
    links = {"10 GbE": slow, "25 GbE": ONE_GPU_EACH, "100 Gb InfiniBand": fast}
    sync = {"overlap": True}
    return {f"VGG-16, {title}": _on_16("vgg16", link, sync=sync) for title, link in links.items()}


def smaller_buckets() -> list[Experiment]:
    """Inception V3 on 16 GPUs, from a bucket for every layer to one for all."""
    sizes = (0.02, 0.25, 1, 2, 8, 32, 64, 128)
    return [_on_16("inception3", CLOUD, sync={"overlap": True, "bucket_mb": mb}) for mb in sizes]


def _some_mb_are_best(runs: list[Run]) -> Shown:
    took = {run.experiment.sync.bucket_mb: step_s(run) for run in runs}
    best, least, most = min(took, key=took.get), min(took), max(took)
    held = took[least] > 1.25 * took[best] < took[most] and 1 <= best <= 32
    return held, f"best {best:g} MB; a bucket a layer takes {took[least] / took[best]:.2f} times as long"


ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 0.003, "dtype": "float64", "evaluate_every": 1000}
SIMULATED = {"world": "simulated", "platform": "cpu-1gbe", "threads": 1}
TRAINED = Experiment(model={"width": 256, "depth": 4}, workers=4, steps=20, **ADAM, cluster=SIMULATED)
"""Four workers with a batch of 256 that really train, on a simulated network of 1 GbE."""

IMAGES = TRAINED.replace(model={"name": "cnn", "depth": 2}, steps=10)
"""A network whose activations outweigh its weights."""


def sharding_is_free() -> list[Experiment]:
    """The same training whole, and by ZeRO stages 1 and 3."""
    return [TRAINED.replace(split={"kind": "data", "zero": stage}) for stage in (0, 1, 3)]


def accumulation() -> list[Experiment]:
    """A worker's 64 samples at once, and in 2, 4 and 8 micro-batches."""
    return [IMAGES.replace(split={"kind": "data", "microbatches": pieces}) for pieces in (1, 2, 4, 8)]


def _only_memory_changes(runs: list[Run]) -> Shown:
    off, share = apart(*runs), most_held(runs[-1], "activations") / most_held(runs[0], "activations")
    held = off < 1e-9 and share < 0.25
    return held, f"losses differ by {off:.0e}; in 8 pieces {share:.0%} of the activations"


def small_batches() -> Experiment:
    """A micro-batch of `accumulation` by itself: 8 samples a worker, and an exchange for them."""
    return IMAGES.replace(batch=32)


def accumulated_statistics() -> list[Experiment]:
    """Batch normalisation with all samples at once and in 8 micro-batches."""
    norm = {"norm": "batch"}
    return [TRAINED.replace(model=norm, split={"kind": "data", "microbatches": pieces}) for pieces in (1, 8)]


EPOCH = Experiment(workers=4, batch=719, steps=2)
"""Two batches, which together hold every training image of the digits once."""


def read_an_epoch(comm: Comm, epoch: Experiment, file: str, by_share: bool) -> tuple[int, np.ndarray]:
    """Take a rank's share of each batch of an epoch; return the bytes that it reads of the file, and its samples."""
    from dlpar.data.sampler import Sampler  # here: imports torch

    # A file that is mapped into memory is read where it is indexed.
    images = np.load(file, mmap_mode="r" if by_share else None)
    sampler = Sampler(epoch, None, len(images))
    samples = np.concatenate([images[sampler.indices(step, comm.rank)] for step in range(epoch.steps)])
    return samples.nbytes if by_share else images.nbytes, samples


def sharded_reading(epoch: Experiment = EPOCH) -> list[list[tuple[int, np.ndarray]]]:
    """An epoch, twice 719 images, on four real ranks: each reads all, or its own share."""
    from dlpar.data import load  # here: imports torch

    with TemporaryDirectory() as folder:
        file = f"{folder}/digits.npy"
        np.save(file, load(epoch.data, epoch.seed).train_x)
        return [spmd(read_an_epoch, epoch, file, by_share) for by_share in (False, True)]


def _data_is_read_once(ranks: list[list[tuple[int, np.ndarray]]]) -> Shown:
    whole, shares = (sum(nbytes for nbytes, _ in each) / 1e6 for each in ranks)
    same = all(np.array_equal(one, other) for (_, one), (_, other) in zip(*ranks))
    held = same and abs(whole / shares - 4) < 1e-9
    return held, f"four ranks read {whole:.2f} MB, and by shares {shares:.2f} MB"


def own_samples() -> dict[str, Experiment]:
    """Four workers with two or three digits each, whose statistics or steps are their own."""
    training = dict(workers=4, batch=128, steps=100, evaluate_every=1000, shards="by_label")
    common = Experiment(model={"width": 64}, **training, cluster={**SIMULATED, "platform": "cpu-10gbe"})
    own = {"model": {"norm": "batch"}}
    return {
        "dealt out of all samples": common.replace(shards="iid"),
        "own digits, gradients summed every step": common,
        "own digits, own batch statistics": common.replace(**own),
        "dealt out of all, own batch statistics": common.replace(shards="iid", **own),
        "own digits, synchronised statistics": common.replace(model={"norm": "sync_batch"}),
        "own digits, 20 local steps": common.replace(averaging={"method": "local", "period": 20}),
    }


SHORTER = "a step takes {:.0f} ms without overlap, {:.0f} ms with it"

TABLE = (
    Row(overlapped_training, "Sending while computing makes a step shorter",
        measured(step_ms, lambda off, on: on < off, SHORTER),
        lambda: _without_and_with(overlapped_training())),
    Row(overlap_hides_everything, '"Overlap hides everything"', _some_stays_exposed),
    Row(faster_links, "A faster link exposes less",
        measured(step_ms, lambda *took: list(took) == sorted(took, reverse=True),
                 "VGG-16, a step: 10 GbE {:.0f} ms, 25 GbE {:.0f} ms, 100 Gb InfiniBand {:.0f} ms")),
    Row(paced_overlap, "Four processes that keep the GPUs' time overlap, too",
        measured(step_ms, lambda off, on: on < 0.8 * off, SHORTER)),
    Row(smaller_buckets, '"Smaller buckets are better"', _some_mb_are_best),
    Row(sharding_is_free, '"Sharding is free"',
        measured(lambda run: run.summary["bytes_sent"], lambda one, three: (one, three) == (1, 1.5),
                 "ZeRO 1 sends {:g} times the bytes, ZeRO 3 {:g}", relative=True)),
    Row(accumulation, "Gradient accumulation changes memory, and nothing else", _only_memory_changes),
    Row(small_batches, "A small batch a step sends eight times as much for a sample",
        measured(lambda run: run.summary["bytes_sent"] / run.curve["samples"].iloc[-1],
                 lambda pieces, small: small == 8 * pieces,
                 "{:,.0f} bytes for a sample where gradients are added up, otherwise {:,.0f}"),
        lambda: [accumulation()[-1], small_batches()]),
    Row(sharded_reading, "Ranks can read a data set once, and get the same samples", _data_is_read_once),
    Row(accumulated_statistics, "Accumulation with batch normalisation is another training",
        measured(lambda run: run.curve["loss"].iloc[-1], lambda whole, pieces: abs(whole - pieces) > 0.01,
                 "the last losses are {:.2f} and {:.2f}")),
    Row(own_samples, "Own shards harm what is computed from a rank's own batch",
        measured(accuracy, lambda dealt, summed, own, mixed, cured, local:
                 min(summed, mixed, cured) > dealt - 0.02 and max(own, local) < dealt - 0.05,
                 "right: {:.1%}; with own digits: sums {:.1%}, own statistics {:.1%} (dealt out {:.1%}, "
                 "synchronised {:.1%}), 20 local steps {:.1%}")),
)  # fmt: skip
