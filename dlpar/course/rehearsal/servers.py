"""Lab 02: parameter servers, staleness, and what a bound is good for."""

from __future__ import annotations

from dlpar.course import presets
from dlpar.course.rehearsal.stage import Stage, apart, trial
from dlpar.jobs.run import Run


def _pace(run: Run) -> float:
    """Seconds from one global step to the next, in the long run."""
    return run.curve["seconds"].diff(10).median() / 10


@trial("02")
def stale_gradients(stage: Stage) -> tuple[bool, str]:
    """The mean staleness is N - 1, and the slow worker's gradients are the old ones."""
    ages = (run := stage.run(presets.stale_gradients())).steps.groupby("rank")["staleness"]
    mean, middle = run.steps["staleness"].mean(), ages.median()
    held = abs(mean - 2) < 0.1 and middle[2] >= 3 * max(middle[0], middle[1])
    return (
        held,
        f"{mean:.2f} updates on average; in the middle {middle[0]:.0f}, {middle[1]:.0f} and {middle[2]:.0f}",
    )


@trial("02")
def pull_apart(stage: Stage) -> tuple[bool, str]:
    """A pull of its own makes weights fresher."""
    reply, separate = (run.steps["staleness"].mean() for run in stage.run(presets.pull_apart()))
    return (
        separate < 0.9 * reply,
        f"staleness {reply:.2f} with weights in the answer, {separate:.2f} with a pull",
    )


@trial("02")
def server_that_waits(stage: Stage) -> tuple[bool, str]:
    """ "Parameter server means asynchronous"."""
    worst = apart(*stage.run(presets.server_that_waits()))
    return worst < 1e-9, f"losses of a server that waits and of a ring differ by {worst:.0e} at most"


@trial("02")
def bound_and_a_slow_worker(stage: Stage) -> tuple[bool, str]:
    """ "A staleness bound cures a slow worker"."""
    bsp, ssp, asp = (_pace(run) for run in stage.run(presets.bound_and_a_slow_worker()))
    held = abs(ssp / bsp - 1) < 0.15 and asp < bsp / 2
    return held, f"a step: bsp {1e3 * bsp:.0f} ms, ssp(4) {1e3 * ssp:.0f} ms, asp {1e3 * asp:.0f} ms"


@trial("02")
def bound_and_passing_jitter(stage: Stage) -> tuple[bool, str]:
    """A bound absorbs what passes."""
    bsp, ssp = (_pace(run) for run in stage.run(presets.bound_and_passing_jitter()))
    return bsp / ssp >= 1.3, f"with jitter ssp(4) is {bsp / ssp:.2f} times as fast as bsp"


@trial("02")
def more_updates(stage: Stage) -> tuple[bool, str]:
    """ "More updates a second is better"."""
    bsp, asp, aware = (run.summary["accuracy"] for run in stage.run(presets.more_updates()))
    held = min(bsp, aware) >= 0.9 and asp < 0.7
    return held, f"right: bsp {bsp:.0%}, asp {asp:.0%}, asp with rates divided by staleness {aware:.0%}"


@trial("02")
def stalled_worker(stage: Stage) -> tuple[bool, str]:
    """A stall longer than the bound holds up bsp and ssp, not asp."""
    runs = stage.run(presets.stalled_worker())
    bsp, ssp, asp = (run.steps.query("rank == 0")["wait"].sum() for run in runs)
    held = bsp > 0.7 and ssp > 0.6 and asp < 0.3
    return held, f"worker 0 waits {bsp:.2f} s under bsp, {ssp:.2f} s under ssp(4), {asp:.2f} s under asp"


@trial("02")
def servers(stage: Stage) -> tuple[bool, str]:
    """Two servers send half each."""
    from dlpar.lab.figures.steps import per_rank

    one, two, leaves = (per_rank(run)[4:, 3] for run in stage.run(presets.servers()))
    held = max(abs(each / one[0] - 0.5) for each in (*two, leaves[0])) < 0.01
    return (
        held,
        f"one server sends {one[0]:.1f} MB, each of two {two[0]:.1f}, a root over leaves {leaves[0]:.1f}",
    )


@trial("02")
def as_the_field_did(stage: Stage) -> tuple[bool, str]:
    """Five published systems, as settings, all learn."""
    right = {name: run.summary["accuracy"] for name, run in stage.run(presets.as_the_field_did()).items()}
    least = min(right, key=right.get)
    return right[least] >= 0.9, f"the least right of {len(right)} is {least}: {right[least]:.0%}"
