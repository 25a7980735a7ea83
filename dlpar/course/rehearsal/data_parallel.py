"""Lab 07: what a data-parallel step hides, what it shares out, and what each rank reads."""

from __future__ import annotations

from dlpar.course import presets
from dlpar.course.rehearsal.stage import Stage, apart, most_held, step_s, trial


def _one_gpu_each(stage: Stage) -> str:
    return presets.platform_file(stage.folder, "one-gpu-each", **presets.ONE_GPU_EACH)


@trial("07")
def overlapped_training(stage: Stage) -> tuple[bool, str]:
    """Sending while computing makes a step shorter."""
    on = presets.overlapped_training()
    with_it, without = (step_s(run) for run in stage.run([on, on.replace(sync={"overlap": False})]))
    return (
        with_it < without,
        f"a step takes {1e3 * without:.0f} ms without overlap, {1e3 * with_it:.0f} ms with it",
    )


@trial("07")
def overlap_hides_everything(stage: Stage) -> tuple[bool, str]:
    """ "Overlap hides everything"."""
    from dlpar.worlds.platforms import platform, workload

    file, exposed = _one_gpu_each(stage), {}
    for title, run in stage.run(presets.overlap_hides_everything(file)).items():
        charged = workload(run.experiment.cluster.stand_in_for)
        computing = platform(file).seconds(run.experiment.batch * charged.flops, charged)
        exposed[title] = step_s(run) / computing - 1
    on = {title.partition(",")[0]: share for title, share in exposed.items() if title.endswith("on")}
    held = on["VGG-16"] > 0.2 and all(share < exposed[f"{name}, overlap off"] for name, share in on.items())
    return held, "messages lengthen a step by: " + ", ".join(
        f"{name} {share:.0%}" for name, share in on.items()
    )


@trial("07")
def faster_links(stage: Stage) -> tuple[bool, str]:
    """A faster link exposes less."""
    took = {
        title.split(", ")[1]: step_s(run)
        for title, run in stage.run(presets.faster_links(stage.folder)).items()
    }
    said = "VGG-16, a step: " + ", ".join(f"{title} {1e3 * each:.0f} ms" for title, each in took.items())
    return list(took.values()) == sorted(took.values(), reverse=True), said


@trial("07")
def paced_overlap(stage: Stage) -> tuple[bool, str]:
    """Four processes that keep the GPUs' time overlap, too."""
    off, on = (step_s(run) for run in stage.run(presets.paced_overlap(_one_gpu_each(stage))))
    return on < 0.8 * off, f"a step takes {1e3 * off:.0f} ms without overlap, {1e3 * on:.0f} ms with it"


@trial("07")
def smaller_buckets(stage: Stage) -> tuple[bool, str]:
    """ "Smaller buckets are better"."""
    cloud = presets.platform_file(stage.folder, "cloud", **presets.CLOUD)
    took = {run.experiment.sync.bucket_mb: step_s(run) for run in stage.run(presets.smaller_buckets(cloud))}
    best, least, most = min(took, key=took.get), min(took), max(took)
    held = took[least] > 1.25 * took[best] < took[most] and 1 <= best <= 32
    return held, f"best {best:g} MB; a bucket a layer takes {took[least] / took[best]:.2f} times as long"


@trial("07")
def sharding_is_free(stage: Stage) -> tuple[bool, str]:
    """ "Sharding is free"."""
    whole, first, third = (run.summary["bytes_sent"] for run in stage.run(presets.sharding_is_free()))
    held = first == whole and third == 1.5 * whole
    return held, f"ZeRO 1 sends {first / whole:g} times the bytes, ZeRO 3 {third / whole:g}"


@trial("07")
def accumulation(stage: Stage) -> tuple[bool, str]:
    """Gradient accumulation changes memory, and nothing else."""
    runs = stage.run(presets.accumulation())
    off = apart(*runs)
    share = most_held(runs[-1], "activations") / most_held(runs[0], "activations")
    return (
        off < 1e-9 and share < 0.25,
        f"losses differ by {off:.0e}; in 8 pieces {share:.0%} of the activations",
    )


@trial("07")
def small_batches(stage: Stage) -> tuple[bool, str]:
    """A small batch a step sends eight times as much for a sample."""
    runs = stage.run([presets.accumulation()[-1], presets.small_batches()])
    pieces, small = (run.summary["bytes_sent"] / run.curve["samples"].iloc[-1] for run in runs)
    return (
        small == 8 * pieces,
        f"{small / 1e3:.1f} kB for a sample, {pieces / 1e3:.1f} kB where gradients are added up",
    )


@trial("07")
def sharded_reading(stage: Stage) -> tuple[bool, str]:
    """Ranks can read a data set once, and learn the same."""
    whole, parts = runs = stage.run(presets.sharded_reading(presets.digits_as_mnist(stage.folder)))
    read = []
    for run in runs:  # a rank's last record says what it has read in all
        last = {source: record["read"] for source, record in run.records() if record["k"] == "step"}
        read.append(sum(last.values()) / 1e6)
    same = whole.curve["loss"].tolist() == parts.curve["loss"].tolist()
    held = same and abs(read[0] / read[1] - 4) < 1e-9
    return held, f"four ranks read {read[0]:.2f} MB, and by shares {read[1]:.2f} MB"


@trial("07")
def accumulated_statistics(stage: Stage) -> tuple[bool, str]:
    """Accumulation with batch normalisation is another training."""
    at_once, in_pieces = (run.curve["loss"] for run in stage.run(presets.accumulated_statistics()))
    differ = (at_once - in_pieces).abs().max()
    return differ > 0.01, f"losses differ by up to {differ:.2f}"


@trial("07")
def own_samples(stage: Stage) -> tuple[bool, str]:
    """Own shards harm what is computed from a rank's own batch."""
    right = {what: run.summary["accuracy"] for what, run in stage.run(presets.own_samples()).items()}
    _, *lost = (100 * (right["dealt out of all samples"] - each) for each in right.values())
    summed, statistics, dealt, cured, local = lost
    held = max(summed, dealt, cured) < 2 and min(statistics, local) > 5
    return (
        held,
        f"points lost: sums {summed:.1f}, own statistics {statistics:.1f}, 20 local steps {local:.1f}",
    )
