"""The sentence under each figure, made from the numbers the figure shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from dlpar.config.experiment import Experiment


def quantity(value: float) -> str:
    """A number in three significant digits: 12,300, 0.0312, 4.5."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite"
    if abs(value) >= 1000:
        digits = 3 - len(str(int(abs(value))))
        return f"{round(value, min(digits, 0)):,.0f}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """Seconds as a reader says them: 12.5 ms, 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if 0 < seconds < 0.05:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def convergence(
    experiment: Experiment,
    done: int,
    samples: int,
    first: float,
    last: float,
    accuracy: float | None,
    stride: int = 1,
) -> str:
    """What the loss did in `done` steps with so many samples; `stride`: one step in how many is drawn."""
    how_far = f"{done:,} of {experiment.steps:,} steps"
    if not samples:
        return f"In {how_far} no sample was drawn, so there is no loss; a larger fraction draws some."
    if not math.isfinite(last):
        return f"After {how_far} the loss is {quantity(last)}: the run diverged; a smaller lr may help."
    moved = "fell" if last < first else "rose" if last > first else "stayed"
    moved = (
        f"came to {quantity(last)}"
        if math.isnan(first)
        else f"{moved} from {quantity(first)} to {quantity(last)}"
    )
    text = f"In {how_far} the training loss {moved}"
    if accuracy is not None:
        text += f"; {accuracy:.1%} of the held-out samples are classified correctly"
    return text + "." + (f" One step in {stride:,} is drawn." if stride > 1 else "")


def throughput(
    total: float, by_rank: Mapping[int, float], experiment: Experiment, predicted: float | None = None
) -> str:
    """How many samples a second, lately, and how many were predicted."""
    workers = experiment.workers
    if workers == 1:
        text = f"One worker trains on {quantity(total)} samples a second"
        return text + (f"; {quantity(predicted)} were predicted." if predicted else ".")
    slowest = min(by_rank, key=by_rank.__getitem__, default=None)
    each = quantity(total / workers)
    text = f"{workers} workers together train on {quantity(total)} samples a second, {each} each on average"
    if slowest is not None and by_rank[slowest] < 0.95 * total / workers:
        text += f"; rank {slowest} has the lowest rate{' of those drawn' * (len(by_rank) < workers)}, "
        text += quantity(by_rank[slowest])
    return text + (f"; {quantity(predicted)} were predicted." if predicted else ".")


WHY_NEVER_STALE = {
    "ring": "in a ring all-reduce every worker waits for the gradients of all others before it updates",
    "mapreduce": "the driver updates once all partitions have answered, and then sends everybody the new weights",
    "ps": "under bsp the servers wait for the gradients of all workers before they update",
    "gossip": "every worker updates its own weights, and averages with its neighbours before the next step",
}


def staleness(largest: int, mean: float, experiment: Experiment, predicted: int | None = None) -> str:
    """How old the weights were on which gradients were computed; `predicted`: what the mean should be."""
    if largest:
        text = (
            f"A gradient met weights that were {quantity(mean)} updates newer on average, {largest} at most"
        )
        return text + (f"; theory says N − 1 = {predicted} on average." if predicted is not None else ".")
    scheme = experiment.sync.scheme
    why = WHY_NEVER_STALE.get(scheme, f"with {scheme}, as set here, nobody updates before all have read")
    if experiment.workers == 1:
        why = "a single worker has nobody to wait for or to overtake it"
    elif experiment.free_running:
        why = "no update of another worker came between a read and its push so far"
    return f"Staleness is 0: every gradient was computed on the newest weights, for {why}."


def lead(most: Sequence[int], bound: int | None) -> str:
    """How far workers ran ahead; `most`: the largest lead of each rank, in clocks."""
    largest = max(most)
    ahead = [f"rank {rank}" for rank, own in enumerate(most) if own == largest]
    who = listed(ahead) if len(ahead) <= 3 else f"{len(ahead)} workers"
    text = f"The largest lead over the slowest was {largest} clock{'s' * (largest != 1)}"
    text += f" ({who})" if largest else ""
    if bound is None:
        return f"{text}; nothing bounds it."
    return f"{text}; never above s = {bound}: {'yes' if largest <= bound else 'NO, the bound was broken'}."


def lanes(updates: Sequence[int]) -> str:
    """How old the weights behind the arrows shown were."""
    mean, n = sum(updates) / len(updates), len(updates)
    return (
        f"Between the two ends of an arrow the weights moved on by {quantity(mean)} updates on average, {max(updates)} "
        f"at most (the last {n} pushes); the number at each head counts the updates of others in between."
    )


def waiting(seconds: Sequence[Sequence[float]], megabytes: Sequence[float]) -> str:
    """Where the workers' time went (rows of computing, communicating, waiting) and what every rank sent."""
    shares = [(wait / total if (total := compute + comm + wait) else 0.0) for compute, comm, wait in seconds]
    most, fewest = (
        max(range(len(shares)), key=shares.__getitem__),
        min(range(len(shares)), key=shares.__getitem__),
    )
    mean = sum(shares) / len(shares)
    text = f"A worker waited {mean:.0%} of its time on average"
    if shares[most] - shares[fewest] >= 0.01:
        text += (
            f", rank {most} the most ({shares[most]:.0%}) and rank {fewest} the least ({shares[fewest]:.0%})"
        )
    total = sum(megabytes)
    if math.isnan(total):
        return f"{text}; the library does not say how much was sent."
    return f"{text}; {quantity(total)} MB were sent in all."


def mixing(factor: float, experiment: Experiment, what: str = "it") -> str:
    """What gossip does in a step to the distance, called `what`.

    Only a graph whose edges are all used each step has a spectral gap.
    """
    text = f"mixing alone would multiply {what} by {factor:.3f} a step"
    fixed = experiment.sync.exchange in ("neighbours", "push_sum")
    return text + (f" (spectral gap {1 - factor:.3f})" if fixed else " in expectation")


def consensus(
    first: tuple[int, float], last: tuple[int, float], largest: float, mixed: str = "", warning: str = ""
) -> str:
    """How the distance between replicas moved from the first step to the last, each ``(step, distance)``.

    `mixed`: what :func:`mixing` says of the graph, empty where none is predicted.
    """
    moved = f"went from {quantity(first[1])} to {quantity(last[1])}"
    text = f"From step {first[0]:,} to step {last[0]:,} the consensus distance {moved}"
    if largest > max(first[1], last[1]):
        text += f", {quantity(largest)} at most"
    if mixed:
        text += f"; {mixed}"
    return f"{text}.{f' {warning}' if warning else ''}"


def timeline(steps: int, step_ms: float, shares: Mapping[str, float]) -> str:
    """Where the time of the last steps went; `shares` of a step by kind of work, mean over ranks."""
    verbs = {
        "compute": "computing",
        "communicate": "communicating",
        "wait": "waiting",
        "evaluate": "evaluating",
    }
    parts = [f"{share:.0%} {verbs.get(kind, kind)}" for kind, share in shares.items() if share >= 0.005]
    how = "In the last step a rank" if steps == 1 else f"Over the last {steps} steps a rank"
    drawn = "; how long a rank waited is recorded, not when" if shares.get("wait", 0) >= 0.005 else ""
    said = listed(parts) or "nothing recorded"
    return f"{how} took {quantity(step_ms)} ms a step: {said} (mean over ranks{drawn})."


def speedup(measured: Mapping[int, float]) -> str:
    """How much faster more workers were; `measured`: workers -> speed-up over the fewest workers."""
    most, fewest = max(measured), min(measured)
    ideal = measured[most] * fewest / most
    return f"{most} workers are {measured[most]:.2f} times as fast as {fewest} ({ideal:.0%} of ideal)."


def scaling(kind: str, gains: Mapping[str, tuple[int, float, float]], base: int) -> str:
    """What the most workers gained; `gains`: name -> (workers, speed-up, efficiency), over `base` workers."""
    how = {"measured": "Measured", "paced": "Paced", "simulated": "Simulated", "predicted": "Predicted"}[kind]
    fastest = "one" if base == 1 else f"{base}"
    if len(gains) > 1:
        fastest = f"the fastest {fastest}"
    each = (
        f"{n:,} workers with {name} are {quantity(up)} times as fast as {fastest} ({share:.0%} of ideal)"
        for name, (n, up, share) in gains.items()
    )
    return f"{how}: {listed(each)}."


def crossing(first: str, second: str, at: Sequence[float], workers: Sequence[int], faster: str) -> str:
    """Where two curves cross; `faster`: the one that is ahead with the most workers."""
    where = listed(f"about {quantity(n)}" for n in at)
    from_here = next(n for n in workers if n > at[-1])
    return f"{first} and {second} are equally fast at {where} workers; from {from_here:,} on {faster} is the faster."


def faster_throughout(name: str, others: Sequence[str]) -> str:
    """That one curve is below no other of some."""
    return f"{name} is at least as fast as {listed(others)} at every number of workers shown."


def off(kind: str, by: float) -> str:
    """How far a prediction or a simulation is from what was found."""
    return f"The {kind} is at most {by:.1%} off." if by >= 5e-4 else f"The {kind} is less than 0.1% off."


def time_to_accuracy(goal: float, reached: Sequence[tuple[str, str, int | None, float]]) -> str:
    """Who came first to an accuracy on each clock.

    `reached`: of each run its name, its clock, and the step and the second at which it was there; the step is None
    for one that never was.
    """
    there = [each for each in reached if each[2]]
    if not there:
        return f"None reached {goal:.0%} held-out accuracy."
    if len(reached) == 1:
        name, _, step, seconds = there[0]
        return f"{name} reached {goal:.0%} after {duration(seconds)}, which are {step:,} steps."
    clocks, first = {clock for _, clock, _, _ in reached}, {}
    for name, clock, _, seconds in sorted(there, key=lambda each: each[3]):
        first.setdefault(clock, f"{name} reached {goal:.0%} first, after {duration(seconds)}")
    text = "; ".join(
        f"on the {clock} clock {said}" if len(clocks) > 1 else said for clock, said in first.items()
    )
    least = min(step for _, _, step, _ in there)
    fewest = listed(name for name, _, step, _ in there if step == least)
    text += f"; {fewest} took the fewest steps, {least:,}"
    missed = [name for name, _, step, _ in reached if not step]
    if missed:
        text += f"; {listed(missed)} did not reach it"
    apart = "; those of different clocks do not compare" * (len(clocks) > 1)
    return f"{text[0].upper() if len(clocks) > 1 else text[0]}{text[1:]}. Seconds are steps × time of a step{apart}."


def listed(parts: Iterable[str]) -> str:
    """``a, b and c``."""
    parts = list(parts)
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1] if parts else ""
