"""Lab 02: the age of gradients, the cost of waiting for a bound, and the value of an update."""

from __future__ import annotations

from typing import Any

from dlpar import Experiment, Run
from dlpar.course.labs.mapreduce import CLUSTER
from dlpar.course.rehearse import SIMULATED, Row, Shown, accuracy, measured, same_losses
from dlpar.lab.figures.throughput import per_rank
from dlpar.systems.servers import ALONE, SLOW, ps

SMALL: dict[str, Any] = dict(model={"name": "mlp", "width": 16, "depth": 1}, batch=64, evaluate_every=1000)
"""A model with little computation. Delays determine the time, which is the same on every machine."""

PACED: dict[str, Any] = {"world": "paced", "platform": CLUSTER}

STEADY: dict[str, Any] = {"kind": "constant", "delay_ms": 10.0}
"""Delays that make each step take 10 ms."""


LEARNING = Experiment(model={"width": 64, "depth": 1}, steps=80, sync=ps(), evaluate_every=10, cluster=ALONE)
"""Experiment for questions of accuracy."""


def _pace(run: Run) -> float:
    """Return the typical milliseconds from one global step to the next, over many steps."""
    return 100 * run.curve["seconds"].diff(10).median()


def stale_gradients() -> Experiment:
    """Let two fast workers and one slow worker push to a server whenever they are ready, for some seconds."""
    delays = {"kind": "constant", "delay_ms": 50.0, "straggler": {2: 4.0}}
    return Experiment(**SMALL, workers=3, steps=100, sync=ps(consistency="asp"), delays=delays)


def _slow_is_stale(run: Run) -> Shown:
    mean = run.steps["staleness"].mean()
    middle = run.steps.groupby("rank")["staleness"].median()
    held = abs(mean - 2) < 0.1 and middle[2] >= 3 * max(middle[0], middle[1])
    each = f"{middle[0]:.0f}, {middle[1]:.0f} and {middle[2]:.0f}"
    return held, f"{mean:.2f} updates on average; in the middle {each}"


def pull_apart() -> list[Experiment]:
    """Get weights with the answer to a push, or by a separate pull. Workers never pause."""
    reply = Experiment(**SMALL, workers=4, steps=120, sync=ps(consistency="asp"))
    return [reply, reply.replace(sync={"pull": "separate"})]


def server_that_waits() -> list[Experiment]:
    """Train with a ring, and with one or two servers. Servers wait for all workers (bsp)."""
    ring = Experiment(model={"name": "mlp", "width": 64}, workers=4, steps=60, dtype="float64")
    return [ring, ring.replace(sync=ps()), ring.replace(sync=ps(servers=2))]


def _bsp_ssp_asp(**fields: Any) -> list[Experiment]:
    rules = (ps(), ps(consistency="ssp", staleness=4), ps(consistency="asp"))
    return [Experiment(**{**SMALL, **fields}, workers=4, sync=rule) for rule in rules]


def bound_and_a_slow_worker() -> list[Experiment]:
    """Run four paced workers under bsp, ssp and asp. One of them is always four times slower."""
    return _bsp_ssp_asp(steps=30, lr=0.3, evaluate_every=5, delays=SLOW, cluster=PACED)


def bound_and_passing_jitter() -> list[Experiment]:
    """Simulate four workers under bsp and ssp. All are sometimes slow, but none is always slow."""
    return _bsp_ssp_asp(steps=100, delays={"kind": "exponential", "delay_ms": 25.0}, cluster=ALONE)[:2]


def more_updates() -> dict[str, Experiment]:
    """Train eight workers, two of them slow, with momentum and a high rate.

    Compare bsp, asp, and controls of asp.

    Each control removes exactly one cause: staleness (one worker makes the same 640 updates), momentum, or
    the high rate. The last run divides each push's rate by its staleness.
    """
    delays = {**STEADY, "straggler": {6: 2.0, 7: 4.0}}
    bsp = LEARNING.replace(workers=8, optimizer="momentum", lr=0.7, delays=delays)
    asp = bsp.replace(sync={"consistency": "asp"})
    alone = {"workers": 1, "batch": bsp.batch // 8, "steps": 8 * bsp.steps, "lr": bsp.lr / 8}
    return {
        "bsp": bsp,
        "asp": asp,
        "asp, one worker, nothing stale": asp.replace(**alone, delays=STEADY | {"straggler": {}}),
        "asp, no momentum": asp.replace(optimizer="sgd"),
        "asp, a seventh of the rate": asp.replace(lr=0.1),
        "asp, rate over staleness": asp.replace(sync={"staleness_aware": True}),
    }


def rate_of_thirty() -> dict[str, Experiment]:
    """Train Rudra's 30 workers with 30-softsync at rates 0.05, 1.5, and 1.5 divided by staleness."""
    small = LEARNING.replace(workers=30, batch=240, steps=60, optimizer="momentum", lr=0.05, delays=STEADY)
    low = small.replace(sync={"consistency": "softsync", "softsync": 30})
    aware = low.replace(lr=1.5, sync={"staleness_aware": True})
    return {"rate 0.05": low, "rate 1.5": low.replace(lr=1.5), "rate 1.5 over staleness": aware}


def stalled_worker() -> list[Experiment]:
    """Let worker 2 stall once for one (virtual) second."""
    return _bsp_ssp_asp(steps=30, delays={**STEADY, "stall": {2: 1.0}}, cluster=ALONE)


def servers() -> list[Experiment]:
    """Compare one server, two servers with half the weights each, and two leaf servers below one server."""
    model = {"name": "mlp", "width": 128}
    one = Experiment(model=model, workers=4, steps=25, sync=ps(), evaluate_every=1000, cluster=SIMULATED)
    return [one, one.replace(sync={"servers": 2}), one.replace(sync={"groups": 2})]


def _half_each(runs: list[Run]) -> Shown:
    one, two, leaves = (per_rank(run)[4:, 3] for run in runs)
    held = max(abs(each / one[0] - 0.5) for each in (*two, leaves[0])) < 0.01
    sent = f"one server sends {one[0]:.1f} MB, each of two {two[0]:.1f}"
    return held, f"{sent}, a root over leaves {leaves[0]:.1f}"


def as_the_field_did() -> dict[str, Experiment]:
    """Return the choices of published systems as settings of one experiment."""
    common = LEARNING.replace(workers=4, lr=0.2, delays={"kind": "gamma", "delay_ms": 5.0})
    downpour = {"consistency": "asp", "push_every": 5}
    return {
        "DistBelief (Downpour)": common.replace(optimizer="adagrad", lr=0.05, sync=downpour),
        "Petuum (ssp)": common.replace(sync={"consistency": "ssp", "staleness": 3}),
        "Li et al. (key ranges)": common.replace(sync={"consistency": "ssp", "staleness": 3, "servers": 2}),
        "Rudra (1-softsync)": common.replace(sync={"consistency": "softsync", "softsync": 1}),
        "MXNet (two levels, bsp)": common.replace(sync={"groups": 2}),
    }


TABLE = (
    Row(stale_gradients, "The mean staleness is N - 1, and the slow worker has the oldest gradients", _slow_is_stale),
    Row(pull_apart, "A separate pull gives fresher weights",
        measured(lambda run: run.steps["staleness"].mean(), lambda reply, separate: separate < 0.9 * reply,
                 "staleness {:.2f} with weights in the answer, {:.2f} with a pull")),
    Row(server_that_waits, '"Parameter server means asynchronous"', same_losses(1e-9)),
    Row(bound_and_a_slow_worker, '"A staleness bound cures a slow worker"',
        measured(_pace, lambda bsp, ssp, asp: abs(ssp / bsp - 1) < 0.15 and asp < bsp / 2,
                 "a step: bsp {:.0f} ms, ssp(4) {:.0f} ms, asp {:.0f} ms")),
    Row(bound_and_passing_jitter, "A bound absorbs passing jitter",
        measured(_pace, lambda bsp, ssp: bsp >= 1.3 * ssp, "a step with jitter: bsp {:.0f} ms, ssp(4) {:.0f} ms")),
    Row(more_updates, '"More updates a second is better"',
        measured(accuracy, lambda bsp, asp, *controls: min(bsp, *controls) >= 0.9 and asp < 0.7,
                 "correct: bsp {:.0%}, asp {:.0%}; without staleness {:.0%}, momentum {:.0%}, "
                 "the high rate {:.0%}; rate over staleness {:.0%}")),
    Row(rate_of_thirty, '"Thirty workers need thirty times the rate"',
        measured(accuracy, lambda low, high, aware: min(low, aware) >= 0.9 and high < 0.5,
                 "correct at rate 0.05: {:.0%}, at 1.5: {:.0%}, at 1.5 over staleness: {:.0%}")),
    Row(stalled_worker, "A stall longer than the bound blocks bsp and ssp, not asp",
        measured(lambda run: run.steps.query("rank == 0")["wait"].sum(),
                 lambda bsp, ssp, asp: bsp > 0.7 and ssp > 0.6 and asp < 0.3,
                 "worker 0 waits {:.2f} s under bsp, {:.2f} s under ssp(4), {:.2f} s under asp")),
    Row(servers, "Each of two servers sends half", _half_each),
    Row(as_the_field_did, "Five published systems, as settings, all learn",
        measured(accuracy, lambda *right: min(right) >= 0.9, "correct: " + "{:.0%}, " * 4 + "{:.0%}")),
)  # fmt: skip
