"""Lab 06: limits of the gain from more workers.

Gains are measured in samples per second and in seconds to an accuracy.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pandas as pd

from dlpar import Experiment, Run
from dlpar.course.rehearse import Row, Shown, cores_limit, measured, on, same_losses, speedup, step_ms
from dlpar.jobs.control_groups import cores
from dlpar.lab.figures.convergence import first_at
from dlpar.lab.sweep import run_all
from dlpar.systems.allreduce import FUSED, MODELS
from dlpar.systems.record import by_sizes, platform_file, rate
from dlpar.theory import predict
from dlpar.theory.calibrate import calibrate
from dlpar.worlds.platforms import Platform, platform
from dlpar.worlds.platforms.lookup import HERE, here_file

GPUS = "p100-25gbe-roce"
"""Platform of Horovod's benchmark: four P100s per node, 25 GbE with RoCE between nodes."""

HOROVOD = platform_file("horovod")
"""Platform of the same cluster, where a GPU computes at half its speed while it communicates."""

SMALL = {"name": "mlp", "width": 64, "depth": 1}

RING = {"scheme": "ring", "bucket_mb": 4096}
"""One bucket for the whole gradient, so that a step has one all-reduce."""


def sizes_only(workload: str | None, platform: str = GPUS, **fields: Any) -> Experiment:
    """Simulate GPUs with 64 samples each and one all-reduce per step. Messages carry only sizes."""
    return by_sizes(platform, workload, **{"batch": 64, "sync": RING, **fields})


def three_worlds() -> Experiment:
    """Simulate four workers of the default model on 1 GbE. They may also be paced or real."""
    cluster = {"world": "simulated", "platform": "cpu-1gbe", "threads": 1}
    return Experiment(workers=4, steps=100, cluster=cluster)


def this_machine() -> Platform:
    """Return this machine as the platform ``here``. The first call takes a few seconds to measure it."""
    return platform(HERE) if here_file().exists() else calibrate()


def on_this_machine() -> Experiment:
    """Train the default model on real processes, each with 256 samples and one thread."""
    return Experiment(scaling="weak", steps=40, evaluate_every=1000, cluster={"threads": 1})


def paced() -> Experiment:
    """Train a small network on real processes with the clock of ResNet-50 on P100s."""
    cluster = {"world": "paced", "platform": GPUS, "stand_in_for": "resnet50", "threads": 1}
    training = dict(batch=32, scaling="weak", steps=4, evaluate_every=1000)
    return Experiment(model=SMALL, **training, sync=RING, cluster=cluster)


def _as_predicted(run: Run) -> Shown:
    off = abs(step_ms(run) / predict(run.experiment).seconds / 1e3 - 1)
    slip = f"the wall clock was {1e3 * run.summary['slip']:.0f} ms behind"
    return off < 0.02, f"{off:.1%} off the closed form; {slip}"


def weak_and_strong() -> list[Experiment]:
    """Simulate ResNet-50 on P100s with 64 samples for each worker, and with 64 for all workers together."""
    weak = sizes_only("resnet50", steps=3)
    return [weak, weak.replace(scaling="strong")]


def more_workers() -> list[Experiment]:
    """Train 1, 4, 8 and 32 workers with 32 samples each, at the best rates of :func:`steps_to_goal`.

    All train on the same number of samples, and are tested after every step.  The clock is that of ResNet-50 on
    P100s and 100 Gb InfiniBand.
    """
    cluster = {"world": "simulated", "platform": "p100-100gb-ib", "stand_in_for": "resnet50", "threads": 1}
    common = Experiment(model=SMALL, batch=32, scaling="weak", seed=1, evaluate_every=1, cluster=cluster)
    rates = {1: 0.4, 4: 0.8, 8: 0.8, 32: 1.2}
    return [common.replace(workers=n, lr=lr, steps=40 * 1024 // (32 * n)) for n, lr in rates.items()]


def _less_than_efficiency(runs: list[Run]) -> Shown:
    one, _, eight, many = runs
    steps, seconds = zip(*(first_at(run, 0.95) for run in (one, eight, many)))
    if None in steps:
        return False, "one run never classifies 95 % of the digits correctly"
    rate, sooner = speedup(one, many), seconds[0] / seconds[2]
    held = rate > 28 and sooner < 4 and steps[2] > steps[1] / 2
    return held, f"{rate:.1f} times the samples/s, {sooner:.1f} times sooner"


def steps_to_goal(seeds: int = 3, rates: tuple[float, ...] = (0.4, 0.8, 1.2)) -> pd.DataFrame:
    """Return the steps to 95 % accuracy on the digits, by GPUs, rate and seed. All train in one process.

    NaN means that a run did not reach 95 %.
    """
    one = [e.replace(workers=1, batch=e.global_batch, steps=min(e.steps, 112)) for e in more_workers()]
    alone = [e.replace(lr=rate, seed=seed) for e, rate, seed in product(one, rates, range(seeds))]
    found = [(outcome.experiment, outcome.run) for outcome in run_all(alone)]
    rows = [(e.batch // 32, e.lr, e.seed, first_at(run, 0.95)[0]) for e, run in found]
    return pd.DataFrame(rows, columns=["GPUs", "rate", "seed", "steps"]).astype({"steps": float})


def _no_quarter(steps: pd.DataFrame) -> Shown:
    best = steps.groupby(["seed", "GPUs"])["steps"].min().unstack()
    few, many = best[4] / best[1], best[32] / best[8]
    said = f"1 to 4 GPUs leave {few.max():.0%} of the steps at most, 8 to 32 GPUs {many.min():.0%} at least"
    return bool((few < many).all() and (many > 0.5).all()), f"each seed at its best rate, {said}"


def ring_and_servers() -> list[Experiment]:
    """Simulate ResNet-50 with a ring, and with one or eight servers on separate nodes."""
    ring = sizes_only("resnet50", steps=15)
    return [ring, *(ring.replace(sync={"scheme": "ps", "servers": servers}) for servers in (1, 8))]


def short_messages() -> list[Experiment]:
    """Simulate 14,698 weights on 10 GbE: ring, four servers, halving-doubling, and the predicted best."""
    small = {"name": "cnn", "width": 256, "depth": 2}
    ring = sizes_only(None, "cpu-10gbe", model=small, batch=1024, steps=20)
    others = [ring.replace(sync={"allreduce": name}) for name in ("halving_doubling", "auto")]
    return [ring, ring.replace(sync={"scheme": "ps", "servers": 4}), *others]


def horovod() -> dict[str, Experiment]:
    """Simulate Horovod's three networks on 64 GPUs. The backward pass sends buckets of 64 MB."""
    return {model: sizes_only(model, HOROVOD, workers=64, steps=1, sync=FUSED) for model in MODELS}


def _as_published(runs: dict[str, Run]) -> Shown:
    alone = {model: predict(run.experiment.replace(workers=1)).seconds for model, run in runs.items()}
    share = {model: 1e3 * alone[model] / step_ms(run) for model, run in runs.items()}
    held = all(abs(share[model] - reported) < 0.1 for model, reported in MODELS.items())
    return held, "of ideal with 64: " + ", ".join(f"{model} {each:.0%}" for model, each in share.items())


def trouble() -> dict[str, Experiment]:
    """Simulate 64 GPUs on a ring.

    In further runs, one GPU is twice as slow, links are slow, or all GPUs are unsteady.
    """
    even = sizes_only("resnet50", workers=64, steps=20)
    short, slow = even.replace(steps=3), {"platform": platform_file("slow-links")}
    return {
        "64 equal GPUs": short,
        "one twice as slow": short.replace(delays={"straggler": {17: 2.0}}),
        "links ten times slower": short.replace(cluster=slow),
        "exponential times": even.replace(cluster={"platform": platform_file("unsteady")}),
    }


def thousands() -> Experiment:
    """Simulate 4,096 workers and one server."""
    return sizes_only("resnet50", workers=4096, steps=2, sync={"scheme": "ps"})


TABLE = (
    Row(three_worlds, "The training does not depend on the world", same_losses(1e-3),
        lambda: [three_worlds(), three_worlds().replace(cluster={"world": "real"})]),
    Row(this_machine, "Two measurements describe this machine as a platform",
        lambda here: (min(here.device.flops, here.inside.bandwidth) > 0,
                      f"{here.device.flops / 1e9:.1f} GFLOP/s a rank, {1e6 * here.inside.latency:.0f} µs a message")),
    Row(on_this_machine, "Up to twice as many ranks as cores run", lambda runs: cores_limit(runs, 0.9),
        lambda: on([on_this_machine()], 1, max(2, min(2 * cores(), 16)))),
    Row(paced, "Eight processes follow a cluster's clock, and the closed form predicts their time", _as_predicted,
        lambda: paced().replace(workers=8)),
    Row(weak_and_strong, "Strong and weak scaling are not the same curve",
        measured(rate, lambda one, weak, alone, strong: weak / one > 3 * strong / alone,
                 "samples/s of 1 and 64 GPUs: {:,.0f} and {:,.0f} (weak), {:,.0f} and {:,.0f} (strong)"),
        lambda: on(weak_and_strong(), 1, 64)),
    Row(more_workers, '"90 % efficiency means ten times sooner to the same accuracy"', _less_than_efficiency),
    Row(ring_and_servers, "One server's port soon saturates",
        measured(step_ms, lambda ring, one, eight: ring < eight < one,
                 "64 GPUs, a step: ring {:.0f} ms, one server {:.0f} ms, eight {:.0f} ms"),
        lambda: on(ring_and_servers(), 64)),
    Row(steps_to_goal, '"Four times the batch, a quarter of the steps"', _no_quarter),
    Row(short_messages, '"For short gradients servers are the answer"',
        measured(step_ms, lambda ring, servers, halving, auto: halving < servers < ring and auto < 1.01 * halving,
                 "64 machines, a step: ring {:.1f} ms, four servers {:.1f}, halving-doubling {:.1f}, auto {:.1f}"),
        lambda: on(short_messages(), 64)),
    Row(horovod, "Simulation reproduces Horovod's three efficiencies", _as_published),
    Row(trouble, "A synchronous step is as slow as its slowest worker",
        measured(step_ms, lambda straggler, links, tail: straggler > 1.5 and links > 2.5 and tail > 3,
                 "times a step: one slow GPU {:.1f}, slow links {:.1f}, unsteady GPUs {:.1f}", relative=True)),
    Row(thousands, "4,096 workers and one server",
        measured(lambda run: run.summary["samples_per_s"] * predict(sizes_only("resnet50")).seconds / 64,
                 lambda worth: worth < 8, "they do the work of {:.1f} GPUs that send nothing")),
)  # fmt: skip
