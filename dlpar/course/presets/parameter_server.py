"""Lab 02: how old a gradient is, what waiting for a bound costs, and what an update is worth."""

from __future__ import annotations

from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.course.presets.mapreduce import CLUSTER

SMALL: dict[str, Any] = dict(model={"name": "mlp", "width": 16, "depth": 1}, batch=64, evaluate_every=1000)
"""Little to compute: where time is the question, delays make it, and they are the same on every machine."""

PACED: dict[str, Any] = {"world": "paced", "platform": CLUSTER}
SIMULATED: dict[str, Any] = {"world": "simulated", "platform": CLUSTER}


def _ps(**fields: Any) -> dict[str, Any]:
    return {"scheme": "ps", **fields}


def stale_gradients() -> Experiment:
    """Lab 02: two fast workers and one four times slower push to one server whenever they are ready."""
    return Experiment(
        **SMALL,
        workers=3,
        steps=60,
        sync=_ps(consistency="asp"),
        delays={"kind": "constant", "delay_ms": 10.0, "straggler": {2: 4.0}},
    )


def pull_apart() -> list[Experiment]:
    """Lab 02: weights in the answer to a push, or asked for in a message of their own; workers never pause."""
    reply = Experiment(**SMALL, workers=4, steps=120, sync=_ps(consistency="asp"))
    return [reply, reply.replace(sync={"pull": "separate"})]


def server_that_waits() -> list[Experiment]:
    """Lab 02, "parameter server means asynchronous": a ring, and servers that wait for all (bsp), one and two."""
    ring = Experiment(model={"name": "mlp", "width": 64}, workers=4, steps=60, dtype="float64")
    return [ring, ring.replace(sync=_ps()), ring.replace(sync=_ps(servers=2))]


def bound_and_a_slow_worker() -> list[Experiment]:
    """Lab 02, "a staleness bound cures a slow worker": one of four is four times slower, for good; paced."""
    delays = {"kind": "constant", "delay_ms": 10.0, "straggler": {1: 4.0}}
    return _bsp_ssp_asp(steps=30, lr=0.3, evaluate_every=5, delays=delays, cluster=PACED)


def bound_and_passing_jitter() -> list[Experiment]:
    """Lab 02, what a bound is good for: all four are now and then slow, none for good; bsp and ssp, simulated."""
    return _bsp_ssp_asp(steps=100, delays={"kind": "exponential", "delay_ms": 25.0}, cluster=SIMULATED)[:2]


def stalled_worker() -> list[Experiment]:
    """Lab 02, break it: worker 2 stalls once, for a (virtual) second."""
    delays = {"kind": "constant", "delay_ms": 10.0, "stall": {2: 1.0}}
    return _bsp_ssp_asp(steps=30, delays=delays, cluster=SIMULATED)


def _bsp_ssp_asp(**fields: Any) -> list[Experiment]:
    rules = (_ps(), _ps(consistency="ssp", staleness=4), _ps(consistency="asp"))
    return [Experiment(**{**SMALL, **fields}, workers=4, sync=rule) for rule in rules]


def more_updates() -> list[Experiment]:
    """Lab 02, "more updates a second is better": bsp, asp, and asp with each rate divided by staleness.

    Eight workers, momentum and a high rate: bsp converges, asp makes eight
    updates where bsp makes one and does not, and dividing saves it.
    """
    common = Experiment(
        model={"name": "mlp", "width": 64, "depth": 1},
        workers=8,
        steps=80,
        optimizer="momentum",
        lr=0.7,
        delays={"kind": "constant", "delay_ms": 10.0},
        sync=_ps(),
        evaluate_every=10,
        cluster=SIMULATED,
    )
    asp = common.replace(sync={"consistency": "asp"})
    return [common, asp, asp.replace(sync={"staleness_aware": True})]


def servers() -> list[Experiment]:
    """Lab 02: one server, two with half the weights each, and one above two leaf servers, on 1 Gb Ethernet."""
    one = Experiment(
        model={"name": "mlp", "width": 128},
        workers=4,
        steps=25,
        sync=_ps(),
        evaluate_every=1000,
        cluster={"world": "simulated", "platform": "cpu-1gbe"},
    )
    return [one, one.replace(sync={"servers": 2}), one.replace(sync={"groups": 2})]


def as_the_field_did() -> dict[str, Experiment]:
    """Lab 02: what published systems chose, as settings of one experiment."""
    common = Experiment(
        model={"name": "mlp", "width": 64, "depth": 1},
        workers=4,
        steps=80,
        lr=0.2,
        evaluate_every=10,
        delays={"kind": "gamma", "delay_ms": 5.0},
        sync=_ps(),
        cluster=SIMULATED,
    )
    return {
        "DistBelief (Downpour)": common.replace(
            optimizer="adagrad", lr=0.05, sync=_ps(consistency="asp", push_every=5)
        ),
        "Petuum (ssp)": common.replace(sync=_ps(consistency="ssp", staleness=3)),
        "Li et al. (key ranges)": common.replace(sync=_ps(consistency="ssp", staleness=3, servers=2)),
        "Rudra (1-softsync)": common.replace(sync=_ps(consistency="softsync", softsync=1)),
        "MXNet (two levels, bsp)": common.replace(sync=_ps(groups=2)),
    }
