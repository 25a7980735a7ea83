"""Lab 10: data, tensor and pipeline parallelism at once."""

from __future__ import annotations

from dlpar.course import presets
from dlpar.course.rehearsal.stage import Stage, apart, trial
from dlpar.jobs.run import Run


def _cluster(stage: Stage, name: str = "nodes of two") -> str:
    return presets.clusters(stage.folder)[name]


def _ms(run: Run) -> float:
    """Of a step."""
    return 1e3 * run.curve["seconds"].iloc[-1] / run.experiment.steps


@trial("10")
def one_process(stage: Stage) -> tuple[bool, str]:
    """2 × 2 × 2 ranks learn what one process learns."""
    worst = apart(*stage.run(presets.one_process()).values())
    return worst < 1e-9, f"losses differ by {worst:.0e} at most"


@trial("10")
def alone_and_together(stage: Stage) -> tuple[bool, str]:
    """ "Speed-ups multiply"."""
    runs = stage.run(presets.alone_and_together(_cluster(stage)))
    alone, data, tensor, pipeline, together = (_ms(run) for run in runs.values())
    product, gained = alone**3 / (data * tensor * pipeline), alone / together
    return (
        gained < 0.8 * product,
        f"the product is {product:.2f}, all together are {gained:.2f} times as fast as one",
    )


@trial("10")
def orders(stage: Stage) -> tuple[bool, str]:
    """ "The order of axes does not matter"."""
    took = {name.split(",")[-1]: _ms(run) for name, run in stage.run(presets.orders(_cluster(stage))).items()}
    held = min(took["data"], took["pipeline"]) > 1.25 * took["tensor"]
    said = ", ".join(f"{axis} {each:.0f} ms" for axis, each in took.items())
    return held, f"a step with this axis inside a box: {said}"


@trial("10")
def factorizations(stage: Stage) -> tuple[bool, str]:
    """Of grids that fit, 2 × 2 × 2 is best here."""
    runs = stage.run(presets.factorizations(_cluster(stage)))
    held = {
        axes: max(sum(record["memory"].values()) for _, record in run.records() if "memory" in record)
        for axes, run in runs.items()
    }
    fits = {axes: _ms(run) for axes, run in runs.items() if held[axes] < 1.5e6}
    best = min(fits, key=fits.get)
    return best == (
        2,
        2,
        2,
    ), f"{' × '.join(map(str, best))}, {fits[best]:.0f} ms; {len(fits)} of {len(runs)} fit"


@trial("10")
def paced_grid(stage: Stage) -> tuple[bool, str]:
    """Eight processes keep the simulated cluster's time."""
    here = _cluster(stage)
    paced, simulated = stage.run([presets.paced_grid(here), presets.grid(here, 2, 2, 2)])
    held = abs(_ms(paced) / _ms(simulated) - 1) < 0.05
    return held, f"a step takes {_ms(paced):.1f} ms paced, {_ms(simulated):.1f} ms simulated"


@trial("10")
def distbelief(stage: Stage) -> tuple[bool, str]:
    """DistBelief's shape trains on real ranks."""
    often, seldom = stage.run([presets.distbelief(push_every=n) for n in (1, 8)])
    right = [run.summary["accuracy"] for run in (often, seldom)]
    return min(right) > 0.85, f"right: {right[0]:.0%} with a push a step, {right[1]:.0%} with one in 8"


@trial("10")
def grid(stage: Stage) -> tuple[bool, str]:
    """One slow device of eight slows all."""
    names = ("device 5 slow", "nodes of two")
    hurt, even = (_ms(stage.run(presets.grid(_cluster(stage, name), 2, 2, 2))) for name in names)
    return hurt > 1.4 * even, f"a step takes {even:.0f} ms, with one device twice as slow {hurt:.0f} ms"
