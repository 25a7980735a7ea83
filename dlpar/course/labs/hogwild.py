"""Lab 05: the effect of races on shared weights, and the cost that remains without locks."""

from __future__ import annotations

from dlpar import Experiment, Run
from dlpar.course.rehearse import Row, Shown, accuracy, cores_limit, learns
from dlpar.jobs.control_groups import cores

COMMON = {"workers": 4, "cluster": {"threads": 1}, "sync": {"scheme": "hogwild", "sparse": True}}
TEXTS = Experiment(model="logistic", data="docstrings", lr=1.0, **COMMON)
"""Softmax regression with 10,010 weights on 1,000 words: which package does a docstring document?"""


def shared_weights() -> Experiment:
    """Let four processes write to one model of the texts for a second or two."""
    return TEXTS.replace(batch=32, steps=400)


def races() -> dict[str, Experiment]:
    """Let four writers race with sparse to dense updates, each at the best of the rates 0.25, 1 and 4.

    A worker's update comes from 1, 8 or 64 texts and writes only their words.  The last experiment writes all
    weights each time, changed or not.
    """
    sizes = {"1 text": (4, 600, 0.25), "8 texts": (32, 250, 1.0), "64 texts": (256, 60, 4.0)}
    sparse = {name: TEXTS.replace(batch=batch, steps=n, lr=lr) for name, (batch, n, lr) in sizes.items()}
    return sparse | {"64 texts, all weights": sparse["64 texts"].replace(sync={"sparse": False})}


def in_turn(racing: Experiment) -> Experiment:
    """Make the updates of `racing` in one process, one after the other, so that there are no races."""
    n = racing.workers
    return racing.replace(workers=1, batch=racing.batch // n, steps=racing.steps * n, lr=racing.lr / n)


def conflicts(run: Run, weights: int = 10_010) -> dict[str, float]:
    """Return percentages: weights that an update wrote, conflicts of a stale update, and lost writes."""
    steps = [record for _, record in run.records() if record["k"] == "step"]
    stale = [record for record in steps if record["staleness"]]
    written = sum(record["written"] for record in steps) / len(steps)
    clashed, of = (sum(record[field] for record in stale) for field in ("conflicts", "written"))
    lost = max(record.get("lost", 0.0) for record in steps)
    return {"written %": 100 * written / weights, "conflicts %": 100 * clashed / of, "lost %": 100 * lost}


def _more_conflicts_no_harm(pairs: list[list[Run]]) -> Shown:
    worse = max(abs(accuracy(racing) - accuracy(alone)) for racing, alone in pairs)
    _, share, lost = zip(*(conflicts(racing).values() for racing, _ in pairs))
    said = f"conflicts rise from {share[0]:.0f} to {share[-1]:.0f} %, {max(lost):.2f} % of additions are lost at most"
    held = worse < 0.025 and max(lost) < 10 and share[0] < 0.8 * share[-1]
    return held, f"{said}; racing and in turn differ by {100 * worse:.1f} points at most"


def lock_free_scaling() -> list[Experiment]:
    """Make dense updates of 1.1 million weights with 1, 2, 4 and more processes.

    There are up to twice as many processes as cores, each with its own batch and one thread. All make the
    same number of updates in total.
    """
    training = dict(batch=16, scaling="weak", evaluate_every=100_000, sync="hogwild")
    common = Experiment(model={"name": "mlp", "width": 1024}, **training, cluster={"threads": 1})
    worlds = sorted({1, 2, 4, min(2 * cores(), 16)})
    return [common.replace(workers=workers, steps=-(-120 // workers)) for workers in worlds]


def _cores_limit_and_updates_age(runs: list[Run]) -> Shown:
    limited, said = cores_limit(runs, 0.75)
    stale = {run.experiment.workers: run.steps["staleness"].mean() for run in runs}
    held = limited and stale[1] == 0 and stale[2] < stale[4] and abs(stale[4] - 3) < 0.8
    return held, f"{said}; of 4 each is {stale[4]:.1f} updates behind"


def slow_writer() -> Experiment:
    """Run steps of 10 ms. One worker is four times slower, and no worker waits for it.

    Delays need no core, so the effect shows on any machine.
    """
    delays = {"kind": "constant", "delay_ms": 10.0, "straggler": {1: 4.0}}
    return TEXTS.replace(batch=32, steps=120, delays=delays)


def _its_updates_are_old(run: Run) -> Shown:
    by_worker = run.steps.groupby("rank")["staleness"].agg(["size", "mean"])
    slow, quick = by_worker.loc[1], by_worker.drop(index=1)
    most = quick["mean"].max()
    held = slow["size"] < 0.6 * quick["size"].min() and slow["mean"] > 2 * most
    said = f"its gradients are {slow['mean']:.1f} updates old, the others' {most:.1f} at most"
    return held and run.summary["accuracy"] > 0.75, said


TABLE = (
    Row(shared_weights, "Four writers without locks train one model", learns(0.75)),
    Row(races, '"Races corrupt the model"', _more_conflicts_no_harm,
        lambda: [[racing, in_turn(racing)] for racing in races().values()]),
    Row(lock_free_scaling, '"Lock-free scales for free"', _cores_limit_and_updates_age),
    Row(slow_writer, "Nobody waits for a slow writer, but its updates are old", _its_updates_are_old),
)  # fmt: skip
