"""Labs 04 and 05: gossip with neighbours, and shared weights without locks."""

from __future__ import annotations

import pandas as pd

from dlpar.course import presets
from dlpar.course.rehearsal.stage import Stage, trial
from dlpar.jobs.run import Run

# ---- 04 -----------------------------------------------------------------------------


@trial("04")
def gossip_run(stage: Stage) -> tuple[bool, str]:
    """Four workers that gossip learn, each a model of its own."""
    run = stage.run(presets.gossip_run())
    accuracy, distance = run.summary["accuracy"], run.consensus["distance"].iloc[-1]
    return accuracy >= 0.93 and distance > 0, f"{accuracy:.1%} right, {distance:.1e} apart"


@trial("04")
def pure_mixing(stage: Stage) -> tuple[bool, str]:
    """Replicas agree as fast as the graph's second eigenvalue says."""
    from dlpar.jobs.consensus import contraction

    experiments = presets.pure_mixing()
    ring, _, complete = (run.consensus["distance"] for run in stage.run(experiments))
    found, told = (ring[40] / ring[10]) ** (1 / 30), contraction(experiments[0])
    held = abs(found / told - 1) < 0.02 and complete[1] < 1e-6 * complete[0]
    return held, f"a step on a ring of 8 leaves {found:.4f} of the distance, the eigenvalue is {told:.4f}"


@trial("04")
def two_islands(stage: Stage) -> tuple[bool, str]:
    """ "A falling loss means the replicas agree"."""
    runs = stage.run(presets.two_islands())
    fell = all((loss.tail(10).mean() < 0.2 * loss.head(3).mean()).all() for loss in map(_losses, runs))
    ring, islands = (run.summary["accuracy"] for run in runs[2:])
    return (
        fell and ring > 0.9 > 0.6 > islands,
        f"every loss falls; right: a ring {ring:.0%}, two islands {islands:.0%}",
    )


def _losses(run: Run) -> pd.DataFrame:
    """A row a step, a column a rank."""
    return run.steps.pivot(index="step", columns="rank", values="loss")


@trial("04")
def more_neighbours(stage: Stage) -> tuple[bool, str]:
    """ "More neighbours is better"."""
    cost = []
    for run in stage.run(presets.more_neighbours()):
        good = run.evals[run.evals["accuracy"].astype(float) >= 0.93]
        cost.append(run.curve["bytes"].iloc[good["step"].iloc[0] - 1] / 1e6 if len(good) else float("inf"))
    said = ", ".join(f"{each:.0f}" for each in cost)
    return cost == sorted(cost) and cost[0] < cost[2] / 2, f"MB to 93 % with 2, 7 and 15 neighbours: {said}"


@trial("04")
def cut_edges(stage: Stage) -> tuple[bool, str]:
    """Two cuts make islands that never agree."""
    ring, path, halves = (run.consensus["distance"].to_numpy() for run in stage.run(presets.cut_edges()))
    held = ring[-1] < 0.01 * path[-1] and path[-1] < 0.2 * path[0] and halves[-1] > 0.05 * halves[0]
    left = ", ".join(f"{each[-1] / each[0]:.0e}" for each in (ring, path, halves))
    return held, f"of the distance is left on the ring, with one cut, with two: {left}"


@trial("04")
def slow_neighbour(stage: Stage) -> tuple[bool, str]:
    """Waiting for neighbours is still waiting; pairs do not wait."""
    ring, pairs = (run.steps for run in stage.run(presets.slow_neighbour()))
    rate, other = (len(steps) / steps["t"].max() for steps in (ring, pairs))
    return other > 1.3 * rate, f"{rate:.0f} worker-steps/s with all neighbours, {other:.0f} in pairs"


# ---- 05 -----------------------------------------------------------------------------


@trial("05")
def shared_weights(stage: Stage) -> tuple[bool, str]:
    """Four writers without locks train one model."""
    accuracy = stage.run(presets.shared_weights()).summary["accuracy"]
    return accuracy >= 0.75, f"{accuracy:.0%} of held-out texts are told right"


@trial("05")
def races(stage: Stage) -> tuple[bool, str]:
    """ "Races corrupt the model"."""
    racing = stage.run(presets.races())
    in_turn = stage.run([presets.in_turn(run.experiment) for run in racing[:3]])
    worse = max(
        abs(a.summary["accuracy"] - b.summary["accuracy"]) for a, b in zip(racing, [*in_turn, in_turn[-1]])
    )
    lost = max(record["lost"] for run in racing for _, record in run.records() if "lost" in record)
    held = worse < 0.05 and lost < 0.1
    return (
        held,
        f"racing and in turn differ by {100 * worse:.1f} points at most; {lost:.2%} of what was added is lost",
    )


@trial("05")
def lock_free_scaling(stage: Stage) -> tuple[bool, str]:
    """ "Lock-free scales for free"."""
    runs = {run.experiment.workers: run for run in stage.run(presets.lock_free_scaling())}
    most = max(runs)
    gained = runs[most].summary["samples_per_s"] / runs[1].summary["samples_per_s"]
    stale = {n: run.steps["staleness"].mean() for n, run in runs.items()}
    held = gained < 0.75 * most and stale[1] == 0 and stale[2] < stale[4]
    return (
        held,
        f"{most} writers are {gained:.1f} times as fast as one; of 4 each is {stale[4]:.1f} updates behind",
    )


@trial("05")
def slow_writer(stage: Stage) -> tuple[bool, str]:
    """Nobody waits for a slow writer, but its updates are old."""
    by_worker = stage.run(presets.slow_writer()).steps.groupby("rank")["staleness"].agg(["size", "mean"])
    quick = by_worker.drop(index=1)
    slow, most = by_worker.loc[1], quick["mean"].max()
    held = slow["size"] < 0.6 * quick["size"].min() and slow["mean"] > 2 * most
    return held, f"its gradients are {slow['mean']:.1f} updates old, the others' {most:.1f} at most"
