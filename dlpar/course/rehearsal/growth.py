"""Lab 06: what more workers buy, in three worlds."""

from __future__ import annotations

from dlpar.course import presets
from dlpar.course.rehearsal.stage import Stage, apart, step_s, trial
from dlpar.jobs.run import Run
from dlpar.theory import predict
from dlpar.worlds.platforms import platform, workload


def _computing() -> float:
    """Seconds in which one GPU computes a step of 64 images, ResNet-50."""
    resnet = workload("resnet50")
    return platform(presets.GPUS).seconds(64 * resnet.flops, resnet)


@trial("06")
def three_worlds(stage: Stage) -> tuple[bool, str]:
    """What is learnt does not depend on the world."""
    here = presets.three_worlds()
    worst = apart(*stage.run([here, here.replace(cluster={"world": "real"})]))
    return worst < 1e-3, f"losses of simulated and of real ranks differ by {worst:.0e} at most"


@trial("06")
def this_machine(stage: Stage) -> tuple[bool, str]:
    """This machine can be measured as a platform."""
    stage.says("real")
    here = presets.this_machine()
    said = f"{here.device.flops / 1e9:.1f} GFLOP/s a rank, {1e6 * here.inside.latency:.0f} µs a message"
    return here.device.flops > 0 and here.inside.bandwidth > 0, said


@trial("06")
def on_this_machine(stage: Stage) -> tuple[bool, str]:
    """As many ranks as cores, and twice as many, run."""
    most = max(2, min(2 * presets.cores(), 16))
    one, many = stage.run([presets.on_this_machine().replace(workers=n) for n in (1, most)])
    gained = many.summary["samples_per_s"] / one.summary["samples_per_s"]
    return gained < 0.9 * most, f"{most} ranks are {gained:.1f} times as fast as one"


@trial("06")
def paced(stage: Stage) -> tuple[bool, str]:
    """Eight processes keep a cluster's time, and the closed form tells it."""
    run = stage.run(presets.paced().replace(workers=8))
    off = abs(step_s(run) / predict(run.experiment).seconds - 1)
    return (
        off < 0.02,
        f"{off:.1%} off the closed form; the wall clock was {1e3 * run.summary['slip']:.0f} ms behind",
    )


@trial("06")
def weak_and_strong(stage: Stage) -> tuple[bool, str]:
    """Strong and weak scaling are not the same curve."""
    gained = []
    for each in presets.weak_and_strong():
        one, many = stage.run([each.replace(workers=n) for n in (1, 64)])
        gained.append(many.summary["samples_per_s"] / one.summary["samples_per_s"])
    weak, strong = gained
    return (
        weak > 3 * strong,
        f"64 GPUs are {weak:.1f} times as fast as one (weak), {strong:.1f} times (strong)",
    )


@trial("06")
def more_workers(stage: Stage) -> tuple[bool, str]:
    """ "90 % efficiency means ten times sooner to the same accuracy"."""
    from dlpar.lab.figures.training import first_at

    runs = {run.experiment.workers: run for run in stage.run(presets.more_workers())}
    rate = runs[32].summary["samples_per_s"] / runs[1].summary["samples_per_s"]
    steps, seconds = zip(*(first_at(runs[n], 0.95) for n in (1, 8, 32)))
    if None in steps:
        return False, "one of them never reads 95 % of the digits"
    sooner = seconds[0] / seconds[2]
    held = rate > 28 and sooner < 6 and steps[2] >= steps[1]
    return held, f"{rate:.1f} times the samples/s, {sooner:.1f} times sooner"


@trial("06")
def ring_and_servers(stage: Stage) -> tuple[bool, str]:
    """One server's port is soon full."""
    of_64 = [each.replace(workers=64) for each in presets.ring_and_servers()]
    ring, one, eight = (step_s(run) for run in stage.run(of_64))
    said = f"64 GPUs, a step: ring {ring:.2f} s, one server {one:.2f} s, eight {eight:.2f} s"
    return ring < eight < one, said


@trial("06")
def short_messages(stage: Stage) -> tuple[bool, str]:
    """ "A ring is always ahead of servers"."""
    of_64 = [each.replace(workers=64) for each in presets.short_messages()]
    ring, servers = (1e3 * step_s(run) for run in stage.run(of_64))
    return servers < ring, f"59 kB on 64 machines, a step: ring {ring:.1f} ms, four servers {servers:.1f} ms"


@trial("06")
def horovod(stage: Stage) -> tuple[bool, str]:
    """Horovod's three efficiencies come out."""
    published = {"inception3": 0.90, "resnet101": 0.90, "vgg16": 0.68}  # its README, 512 GPUs
    share = {}
    file = presets.platform_file(stage.folder, "horovod", extends=presets.GPUS, overlap=0.5)
    for model, run in stage.run(presets.horovod(file)).items():
        charged = workload(model)
        share[model] = (
            platform(presets.GPUS).seconds(64 * charged.flops, charged) / run.curve["seconds"].iloc[-1]
        )
    held = all(abs(share[model] - reported) < 0.1 for model, reported in published.items())
    return held, "of ideal with 64: " + ", ".join(f"{model} {each:.0%}" for model, each in share.items())


@trial("06")
def trouble(stage: Stage) -> tuple[bool, str]:
    """Who waits for all waits for the slowest."""
    slow = platform(presets.GPUS).between.bandwidth / 10
    slow_link = presets.platform_file(stage.folder, "slow", extends=presets.GPUS, between={"bandwidth": slow})
    unsteady = presets.platform_file(
        stage.folder, "unsteady", extends=presets.GPUS, timing={"kind": "exponential"}
    )
    took = {what: step_s(run) for what, run in stage.run(presets.trouble(slow_link, unsteady)).items()}
    even, straggler, links, tail = (each / took["64 equal GPUs"] for each in took.values())
    held = straggler > 1.5 and links > 2.5 and tail > 3 and even == 1
    return (
        held,
        f"times a step: one slow GPU {straggler:.1f}, slow links {links:.1f}, unsteady GPUs {tail:.1f}",
    )


@trial("06")
def thousands(stage: Stage) -> tuple[bool, str]:
    """4,096 workers and one server."""
    run: Run = stage.run(presets.thousands())
    worth = run.summary["samples_per_s"] * _computing() / 64
    return worth < 8, f"they do the work of {worth:.1f} GPUs with nothing to send"
