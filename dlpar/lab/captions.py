"""Captions of figures, made from the numbers that the figures show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dlpar.config.experiment import Experiment
from dlpar.lab import theme

if TYPE_CHECKING:
    import numpy as np

    from dlpar.lab.figures.consensus import Distance
    from dlpar.lab.figures.convergence import Curve


def quantity(value: float) -> str:
    """Format a number with three significant digits: 12,300, 0.0312, 4.5."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite"
    return f"{float(f'{value:.3g}'):,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Format seconds in everyday units: 12.5 ms, 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if 0 < seconds < 0.05:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def short_time(seconds: float) -> str:
    """Format seconds with three significant digits: 2 s, 12.1 ms, 7 µs."""
    return _in_units(seconds, {"s": 1.0, "ms": 1e-3, "µs": 1e-6})


def nbytes(count: float) -> str:
    """Format bytes with three significant digits: 12 B, 1.2 kB, 178 MB."""
    return _in_units(count, {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0})


def _in_units(value: float, units: dict[str, float]) -> str:
    unit = next((unit for unit, size in units.items() if value >= size), [*units][-1])
    return f"{quantity(value / units[unit])} {unit}"


def listed(parts: Iterable[str]) -> str:
    """Join parts as an enumeration: ``a, b and c``."""
    parts = list(parts)
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1] if parts else ""


def shown_workers(experiment: Experiment, sentence: str) -> str:
    """Add to a caption that only the first workers are drawn, if some workers are left out."""
    if not theme.crowded(experiment):
        return sentence
    return f"{sentence} Drawn are the first {theme.WORKERS} of {experiment.workers:,} workers."


def errors(found: Mapping[str, Mapping], most: float = math.inf) -> list[str]:
    """State the largest relative errors of simulation and prediction against the most trusted source.

    Parameters
    ----------
    found : mapping of str to mapping
        Values by source (see :data:`~dlpar.lab.theme.ORDER`), each by a key that sources share.
    most : float, default infinite
        Error above which no sentence is added.
    """
    base = next(source for source in theme.ORDER if found.get(source))
    sentences = []
    for source, noun in (("simulated", "simulation"), ("predicted", "prediction")):
        own = found.get(source, {}) if source != base else {}
        off = [abs(own[key] / found[base][key] - 1) for key in found[base].keys() & own.keys()]
        if off and max(off) < most:
            by = f"at most {max(off):.1%}" if max(off) >= 5e-4 else "less than 0.1%"
            sentences.append(f"The {noun} is {by} off.")
    return sentences


def convergence(curve: Curve, stride: int = 1) -> str:
    """Describe the change in a run's loss. One step in `stride` is drawn."""
    first, last, steps = curve.first, curve.done.loss, curve.done.step + 1
    progress = f"{steps:,} of {curve.experiment.steps:,} steps"
    if not curve.samples:
        return f"In {progress} no sample was drawn, so there is no loss. A larger fraction draws some."
    moved = "fell" if last < first else "rose" if last > first else "went"
    changed = f"{moved} from {quantity(first)} to {quantity(last)}"
    text = f"In {progress} the training loss {changed if first != last else f'stayed at {quantity(last)}'}"
    if curve.diverged:
        return f"{text}: the run diverged; a smaller lr may help."
    if curve.accuracy is not None:
        text += f"; {curve.accuracy:.1%} of the held-out samples are classified correctly"
    text += "".join(f"; rank {n} died, others went on at step {step:,}" for n, step in curve.deaths.items())
    text += f"; {curve.lost:,} steps were done twice (broad line)" * (curve.lost > 0)
    return text + "." + (f" One step in {stride:,} is drawn." if stride > 1 else "")


def compared(unit: str, values: Mapping[str, float], worlds: Iterable[str]) -> str:
    """List the runs' values and ratios to the first: ``4 workers: 1,200 samples per second, 1.7 times …``.

    There are no ratios of a real machine's values to a platform's.
    """
    alike = len({world == "real" for world in worlds}) == 1
    (base, least), *others = values.items()
    each = [f"{base}: {quantity(least)} {unit}"]
    ratio = lambda value: f", {quantity(value / least)} times as many" * alike
    each += [f"{name}: {quantity(value)}{ratio(value)}" for name, value in others]
    return f"{'; '.join(each)}.".replace(", 1 times as many", ", as many")


BOUND = {"exact": "", "upper bound": "at least ", "lower bound": "at most ", "estimate": "about "}
"""Words before a predicted throughput, by the kind of the predicted time."""


def throughput(
    total: float, by_rank: Mapping[int, float], experiment: Experiment, predicted: float | None, kind: str
) -> str:
    """Describe the mean throughput (samples/s) of all workers and of the slowest, and the prediction."""
    workers = experiment.workers
    end = f"; {BOUND[kind]}{quantity(predicted)} were predicted." if predicted else "."
    if workers == 1:
        return f"One worker trains on {quantity(total)} samples a second{end}"
    slowest = min(by_rank, key=by_rank.__getitem__, default=None)
    text = f"{workers} workers together train on {quantity(total)} samples a second"
    text += f", {quantity(total / workers)} each on average" * (experiment.replicas == workers)
    if slowest is not None and by_rank[slowest] < 0.95 * total / experiment.replicas:
        text += f"; rank {slowest} has the lowest rate{' of those drawn' * (len(by_rank) < experiment.replicas)}, "
        text += quantity(by_rank[slowest])
    return text + end


def staleness(largest: int, mean: float, experiment: Experiment, predicted: int | None = None) -> str:
    """Describe the staleness of gradients, in updates. `predicted` is the predicted mean."""
    if largest:
        age = f"{quantity(mean)} updates old on average, {largest} at most"
        text = f"The weights behind a gradient were {age}" + " (dropped above 0)" * bool(experiment.backup)
        return text + (f"; theory predicts N − 1 = {predicted} on average." if predicted is not None else ".")
    scheme = experiment.sync.scheme
    otherwise = f"with these settings of {scheme}, no worker updates before all have read"
    why = theme.NEVER_STALE.get(scheme, otherwise)
    if experiment.workers == 1:
        why = "a single worker has nobody to wait for, and nobody can overtake it"
    elif experiment.averaging.method != "none":
        why = "between two exchanges every worker updates only its own weights"
    elif experiment.sync.runs_free:
        why = "so far no update of another worker came between a read and its push"
    return f"Staleness is 0: every gradient was computed on the newest weights, because {why}."


def lead(most: Sequence[int], bound: int | None) -> str:
    """Describe the workers' largest lead and its bound. `most` is each rank's largest lead, in clocks."""
    largest = max(most)
    ahead = [f"rank {rank}" for rank, own in enumerate(most) if own == largest]
    ranks = listed(ahead) if len(ahead) <= 3 else f"{len(ahead)} workers"
    text = f"The largest lead over the slowest was {largest} clock{'s' * (largest != 1)}"
    text += f" ({ranks})" if largest else ""
    if bound is None:
        return f"{text}; nothing bounds it."
    return f"{text}; never above s = {bound}: {'yes' if largest <= bound else 'NO, the bound was broken'}."


def lanes(updates: Sequence[int]) -> str:
    """Describe the staleness that the drawn arrows show."""
    mean, n = quantity(sum(updates) / len(updates)), len(updates)
    text = f"Between the two ends of an arrow, the weights received {mean} updates from other workers"
    text = f"{text} on average, {max(updates)} at most (last {n} pushes)"
    return f"{text}; the number at each arrowhead counts these updates."


def waiting(seconds: np.ndarray, megabytes: Sequence[float]) -> str:
    """Describe the workers' waiting time, and the MB that all ranks sent.

    Rows: computing, communicating, waiting.
    """
    shares = (seconds[:, 2] / seconds.sum(axis=1).clip(min=1e-9)).tolist()
    most, fewest = (shares.index(end(shares)) for end in (max, min))
    text = f"A worker waited {sum(shares) / len(shares):.0%} of its time on average"
    if shares[most] - shares[fewest] >= 0.01:
        text += f", rank {most} the most ({shares[most]:.0%})"
        text += f" and rank {fewest} the least ({shares[fewest]:.0%})"
    total = sum(megabytes)
    if math.isnan(total):
        return f"{text}; the library does not report how much was sent."
    # Servers report theirs at the end. A spare or dead rank may send nothing.
    by = "in all" if any(megabytes[len(seconds) :]) or len(megabytes) == len(seconds) else "by the workers"
    return f"{text}; {quantity(total)} MB were sent {by}."


def mixing(factor: float, experiment: Experiment, distance: str = "it") -> str:
    """Describe the effect of one averaging step over a graph on the consensus distance.

    `distance` is the distance's name in the caption.

    Only a graph that uses all edges at each step has a spectral gap.
    """
    text = f"mixing alone would multiply {distance} by {factor:.3f} a step"
    fixed = experiment.sync.exchange in ("neighbours", "push_sum")
    return text + (f" (spectral gap {1 - factor:.3f})" if fixed else " on average")


def consensus(found: Distance, warning: str) -> str:
    """Describe the change in the distance between replicas, and the effect of mixing alone if known."""
    (first, before), (last, after) = found.first, found.last
    went = f"the consensus distance went from {quantity(before)} to {quantity(after)}"
    text = f"From step {first:,} to step {last:,} {went}" if found.largest else "All replicas stay equal"
    if found.largest > max(before, after):
        text += f", {quantity(found.largest)} at most"
    if found.factor is not None:
        text += f"; {mixing(found.factor, found.experiment)}"
    return f"{text}.{f' {warning}' if warning else ''}"


VERBS = {"compute": "computing", "communicate": "communicating", "wait": "waiting", "evaluate": "evaluating"}


def timeline(seconds: float, shares: Mapping[str, float], ranks: int) -> str:
    """Describe the share of each kind of work in a time window, averaged over the drawn ranks."""
    parts = [f"{share:.0%} {VERBS.get(kind, kind)}" for kind, share in shares.items() if share >= 0.005]
    idle = 1 - sum(shares.values())
    parts += [f"{idle:.0%} between phases"] if idle >= 0.02 else []
    note = "; only the duration of waiting is recorded, not its start" * (shares.get("wait", 0) >= 0.005)
    whose = "The rank spent" if ranks == 1 else f"On average the {ranks} ranks spent"
    return f"{whose} {listed(parts) or 'nothing'} in this window of {duration(seconds)}{note}."


def scaling(kind: str, gains: Mapping[str, tuple[int, float, float]], base: int) -> str:
    """State the speed-up with the most workers.

    `gains`: name -> (workers, speed-up, efficiency), over `base` workers.
    """
    slowest = "one" if base == 1 else f"{base}"
    if len(gains) > 1:
        slowest = f"the fastest {slowest}"
    each = (
        f"{n:,} workers{f' with {name}' * (len(gains) > 1)} are {quantity(up)} times as fast as {slowest} "
        f"({share:.0%} of ideal)"
        for name, (n, up, share) in gains.items()
    )
    return f"{kind.capitalize()}: {listed(each)}."


def crossing(first: str, second: str, at: Sequence[float], workers: Sequence[int], faster: str) -> str:
    """State the numbers of workers at which two curves cross.

    `faster` is the faster curve with the most workers.
    """
    where = listed(f"about {quantity(n)}" for n in at)
    beyond = next(n for n in workers if n > at[-1])
    return f"{first} and {second} are equally fast at {where} workers; from {beyond:,} on {faster} is faster."


def faster_throughout(name: str, others: Sequence[str]) -> str:
    """State that one curve is never below some others."""
    return f"{name} is at least as fast as {listed(others)} at every number of workers shown."


def time_to_accuracy(goal: float, reached: Sequence[tuple[str, str, int | None, float]]) -> str:
    """Name, for each clock, the first run that reached an accuracy.

    Parameters
    ----------
    goal : float
        Held-out accuracy.
    reached : sequence of (str, str, int or None, float)
        Name and clock of each run, and the step and second at which it reached the goal; the step is None if
        it never did.
    """
    there = sorted((each for each in reached if each[2]), key=lambda each: each[3])
    if not there:
        return f"No run reached {100 * goal:g}% held-out accuracy."
    if len(reached) == 1:
        name, _, step, seconds = there[0]
        return f"{name} reached {100 * goal:g}% after {duration(seconds)}, in {step:,} steps."
    several, first = len({clock for _, clock, _, _ in reached}) > 1, {}
    for name, clock, _, seconds in there:
        on = f"on the {clock} clock " if several else ""
        first.setdefault(clock, f"{on}{name} reached {100 * goal:g}% first, after {duration(seconds)}")
    least = min(step for _, _, step, _ in there)
    fewest = listed(name for name, _, step, _ in reached if step == least)
    missed = listed(name for name, _, step, _ in reached if not step)
    parts = [*first.values(), f"{fewest} took the fewest steps, {least:,}"]
    text = "; ".join([*parts, f"{missed} did not reach it"] if missed else parts)
    text = f"{text[0].upper()}{text[1:]}" if several else text
    apart = "; seconds of different clocks cannot be compared" * several
    return f"{text}. Seconds are steps × time of a step{apart}."
