"""Lab 07: the backward pass sends gradients in buckets. Part of this communication is exposed."""

from __future__ import annotations

from operator import gt

from dlpar import Experiment, Run
from dlpar.course.labs.scaling import GPUS, sizes_only
from dlpar.course.rehearse import Row, measured, step_ms
from dlpar.systems.record import platform_file
from dlpar.theory import buckets
from dlpar.worlds.platforms import platform_of, workload

ONE_GPU_EACH = platform_file("one-gpu-each")
"""Platform with a P100 in each machine (25 GbE, RoCE): each rank has its own link, so closed forms are
exact."""


def overlapped_training() -> Experiment:
    """Simulate eight GPUs on two machines with the clock of VGG-16. Communication overlaps computation.

    The bytes and FLOPs of VGG-16 are spread over the layers of a small network. Each bucket holds one or two layers.
    """
    training = dict(workers=8, batch=64, scaling="weak", steps=12, evaluate_every=1000)
    sync = {"scheme": "ring", "overlap": True, "bucket_mb": 0.02}
    cluster = {"world": "simulated", "platform": GPUS, "stand_in_for": "vgg16", "threads": 1}
    return Experiment(model={"width": 64, "depth": 8}, **training, sync=sync, cluster=cluster)


def _without_and_with(experiment: Experiment) -> list[Experiment]:
    """Return an experiment without overlap and the same experiment with overlap."""
    return [experiment.replace(sync={"overlap": overlap}) for overlap in (False, True)]


def paced_overlap() -> list[Experiment]:
    """Run four real processes on the GPUs' clock, without and with overlap."""
    cluster = {"world": "paced", "platform": ONE_GPU_EACH}
    return _without_and_with(overlapped_training().replace(workers=4, steps=2, cluster=cluster))


def _on_16(workload: str, platform: str = "one-gpu-each", batch: int = 64, **sync: float) -> Experiment:
    """Simulate two steps of 16 GPUs. Messages carry only sizes."""
    return sizes_only(workload, platform, workers=16, batch=batch, steps=2, sync={"scheme": "ring", **sync})


def _networks(how: str, **sync: float) -> dict[str, Experiment]:
    """Return the four networks. Each GPU has 64 images or 8 sequences."""
    batches = {"vgg16": 64, "inception3": 64, "resnet101": 64, "bert-large": 8}
    titles = ("VGG-16", "Inception V3", "ResNet-101", "BERT-large")
    asked = (_on_16(name, batch=batch, **sync) for name, batch in batches.items())
    return {f"{title}, {how}": each for title, each in zip(titles, asked)}


def overlap_hides_everything() -> dict[str, Experiment]:
    """Train four networks on 16 GPUs, without and with overlap."""
    return _networks("overlap off") | _networks("overlap on", overlap=True)


def one_cause_less() -> dict[str, Experiment]:
    """Train the four networks with overlap: once with twice the samples, once with buckets of 1 MB."""
    usual = _networks("twice the samples", overlap=True)
    twice = {title: each.replace(batch=2 * each.batch) for title, each in usual.items()}
    return twice | _networks("1 MB buckets", overlap=True, bucket_mb=1)


def parts_ms(run: Run) -> dict[str, float]:
    """Return an overlapped step's computation and communication in ms, and its exposed part in ms and %."""
    asked = run.experiment
    gpu, model = platform_of(asked), workload(asked.cluster.stand_in_for)
    sizes = [model.itemsize * layer.parameters for layer in model.layers]  # in the order of the backward pass
    last = sum(sizes[layer] for layer in buckets(sizes, asked.sync.bucket_mb * 1e6)[-1])
    ms, a_byte = 1e3 * gpu.device.seconds(asked.batch * model.flops, model), 2e3 / gpu.between.bandwidth
    sent = {"all gradients": model.nbytes, "largest layer": max(sizes), "last bucket": last}
    sending = {name: a_byte * (1 - 1 / asked.workers) * nbytes for name, nbytes in sent.items()}
    parts = {"computing": ms, "backward pass": 2 / 3 * ms, **sending, "exposed": step_ms(run) - ms}
    return parts | {"%": 100 * parts["exposed"] / ms}


def smaller_buckets(platform: str = "cloud", overlap: bool = True, workers: int = 16) -> list[Experiment]:
    """Train Inception V3 with buckets from one layer to all layers.

    In the cloud a message takes 0.1 ms.
    """
    asked = _on_16("inception3", platform, overlap=overlap).replace(workers=workers)
    return [asked.replace(sync={"bucket_mb": mb}) for mb in (0.02, 0.25, 1, 2, 8, 32, 64, 128)]


SHORTER = "a step takes {:.0f} ms without overlap, {:.0f} ms with it"

TABLE = (
    Row(overlapped_training, "Sending while computing makes a step shorter",
        measured(step_ms, lambda off, on: on < off, SHORTER),
        lambda: _without_and_with(overlapped_training())),
    Row(overlap_hides_everything, '"Overlap hides everything"',
        measured(lambda run: parts_ms(run)["%"], lambda *share: share[4] > 20 and all(map(gt, share[:4], share[4:])),
                 "messages lengthen a step, without overlap: VGG-16 {:.0f} %, Inception V3 {:.0f} %, ResNet-101 "
                 "{:.0f} %, BERT-large {:.0f} %; with it {:.0f} %, {:.0f} %, {:.0f} %, {:.0f} %")),
    Row(one_cause_less, "Too many bytes stay exposed, and so does the last bucket",
        measured(lambda run: parts_ms(run)["exposed"], lambda vgg, _, __, bert, large, inception, resnet, embedding:
                 vgg < 20 < 80 < min(bert, large, embedding) and max(inception, resnet) < 2,
                 "exposed with twice the samples: VGG-16 {:.0f} ms, Inception V3 {:.0f} ms, ResNet-101 {:.0f} ms, "
                 "BERT-large {:.0f} ms; with small buckets {:.0f} ms, {:.0f} ms, {:.0f} ms, {:.0f} ms")),
    Row(paced_overlap, "Four processes on the GPUs' clock overlap, too",
        measured(step_ms, lambda off, on: on < 0.8 * off, SHORTER)),
    Row(smaller_buckets, '"Smaller buckets are better"',
        measured(step_ms, lambda *took: took[0] > 1.25 * min(took) < took[-1] and 1 < took.index(min(took)) < 6,
                 "a step, from a bucket for each layer to one for all: " + "{:.0f} ms, " * 7 + "{:.0f} ms")),
)  # fmt: skip
