"""Figures of communication cost: messages, collectives, and communication that computation does not hide."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dlpar.jobs.launch import spmd
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, Names, blank, captioned, experiment_of, gantt, listed, require, stacked
from dlpar.lab.labels import labels
from dlpar.lab.sweep import Outcome
from dlpar.theory import Link, collective_seconds, fitted, predict
from dlpar.theory.overlap import buckets
from dlpar.worlds.platforms import platform_of, workload
from dlpar.worlds.platforms.lookup import USUAL
from dlpar.worlds.platforms.ping_pong import SIZES, there_and_back

if TYPE_CHECKING:
    from dlpar.comm import Comm
    from dlpar.config.experiment import Experiment


class CollectiveTime(NamedTuple):
    """Time of a collective, measured in a world or predicted."""

    name: str
    ranks: int
    nbytes: int
    """Bytes of the whole tensor."""
    seconds: float
    """Time from the first rank's call to the last rank's result. If measured, the fastest of several calls.
    """
    how: str = "measured"
    """``measured``, ``paced``, ``simulated`` or ``predicted``."""


class PingPong(NamedTuple):
    """One-way times of messages between two ranks.

    Attributes
    ----------
    sizes : tuple of int
        Bytes.
    seconds : tuple of float
        Half of the fastest round trip.
    how : str, default "measured"
        Source, as in :class:`CollectiveTime`.
    where : str
        Platform of the clock; default: this machine.
    link : Link
        Link fitted to sizes and seconds.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    how: str = "measured"
    where: str = "this machine"

    @property
    def link(self) -> Link:
        return fitted(self.sizes, self.seconds)


def ping_pong(
    sizes: Sequence[int] = SIZES, repeats: int = 31, world: str = "real", platform: str | None = None
) -> PingPong:
    """Send messages back and forth between two ranks, and time them.

    Parameters
    ----------
    sizes : sequence of int
        Bytes, from 1.
    repeats : int, default 31
        Round trips of each size on real ranks. Only the fastest counts, because slower trips waited for a
        core, not for the link. In the other worlds all round trips would be equal, so there is only one.
    world : str, default ``"real"``
        ``"paced"`` or ``"simulated"`` use the clock of a platform.
    platform : str, optional
        Platform of paced and simulated ranks; default ``"p100-25gbe"``.
    """
    trips = repeats if world == "real" else 1
    times = spmd(there_and_back, tuple(sizes), trips, workers=2, **_cluster(world, platform))[0]
    where = {} if world == "real" else {"where": platform or USUAL}
    return PingPong(tuple(sizes), tuple(times), theme.HOW[world], **where)


def time_collectives(
    names: Sequence[str],
    ranks: int | Sequence[int],
    sizes: Sequence[float],
    world: str = "real",
    platform: str | None = None,
    repeats: int = 3,
    timeout: float = 60.0,
) -> list[CollectiveTime]:
    """Time all-reduce algorithms.

    Parameters
    ----------
    names : sequence of str
        Keys of :data:`dlpar.collectives.ALLREDUCE`.
    ranks : int or sequence of int
        World sizes: up to 64, for simulated ranks up to 4,096.
    sizes : sequence of float
        Bytes of the tensor, multiples of 4.
    world : str, default ``"real"``
        ``"real"``: messages of this machine; ``"paced"``: real ranks and messages on the clock of a platform;
        ``"simulated"``: a virtual clock, and messages that carry only sizes.
    platform : str, optional
        Platform of paced and simulated ranks; default ``"p100-25gbe"``.
    repeats : int, default 3
        Calls of each collective on real ranks. The fastest counts. Other worlds make one call, because all
        calls would be equal.
    timeout : float, default 60
        Seconds after which the ranks are ended.

    Raises
    ------
    ValueError
        If a name is not known.
    BadExperiment
        If there is no such world or platform, or the platform holds fewer ranks.
    """
    from dlpar.collectives import ALLREDUCE

    for name in names:
        require(name in ALLREDUCE, f"names: got {name!r}, allowed is any of {', '.join(ALLREDUCE)}")
    sizes, found = [int(size) for size in sizes], []
    calls = (1, repeats) if world == "real" else (0, 1)
    for count in [ranks] if isinstance(ranks, int) else ranks:
        cluster = _cluster(world, platform)
        trials = spmd(_time, tuple(names), sizes, *calls, workers=count, timeout=timeout, **cluster)
        for number, (name, size) in enumerate((name, size) for name in names for size in sizes):
            together = zip(*(trial[number] for trial in trials))
            times = [max(end for _, end in call) - min(began for began, _ in call) for call in together]
            found.append(CollectiveTime(name, count, size, min(times), theme.HOW[world]))
    return found


def predict_collectives(
    names: Sequence[str], ranks: int | Sequence[int], sizes: Sequence[float], link: Link
) -> list[CollectiveTime]:
    """Predict the times of all-reduce algorithms with :func:`dlpar.theory.collective_seconds`.

    Parameters
    ----------
    names, ranks, sizes
        As in :func:`time_collectives`.
    link : Link
        Link of every rank, such as ``dlpar.worlds.platforms.platform("cpu-10gbe").between``.
    """
    asked = product(names, [ranks] if isinstance(ranks, int) else ranks, sizes)
    return [CollectiveTime(*each, collective_seconds(*each, link), "predicted") for each in asked]


def _cluster(world: str, platform: str | None) -> dict[str, str]:
    """Return the cluster of the ranks as keywords of :func:`dlpar.spmd`."""
    cluster = {"world": world, **({"platform": platform} if platform else {})}
    return {**cluster, "messages": "sizes"} if world == "simulated" else cluster


def _time(comm: Comm, names: Sequence[str], sizes: Sequence[int], warming: int, repeats: int) -> list:
    """Time each call of each collective on a rank, after warm-up. Return its start and end."""
    from dlpar.collectives import ALLREDUCE

    found = []
    for name in names:
        for size in sizes:
            tensor, calls = comm.empty(size // 4).fill_(1.0), []
            for _ in range(warming + repeats):
                comm.barrier()
                began = comm.now()
                ALLREDUCE[name](comm, tensor)
                calls.append((began, comm.now()))
            found.append(calls[warming:])
    return found


# ---- figures ------------------------------------------------------------------------


def link_fit(*found: PingPong) -> Figure:
    """Draw the one-way time of a message against its bytes, and the fit ``latency + bytes / bandwidth``.

    Parameters
    ----------
    *found : PingPong
        One or two, from :func:`dlpar.lab.ping_pong`.

    Raises
    ------
    ValueError
        If there are no results or more than two.
    """
    require(1 <= len(found) <= 2, f"found: got {len(found)} ping-pongs, allowed is 1 or 2")
    sizes, everything = [size for one in found for size in one.sizes], []
    figure = blank()
    for one, colour, dashes, symbol in zip(found, theme.RUNS[::2], theme.RUNS[3::-2], theme.MARKERS):
        times, fit = ([1e3 * t for t in row] for row in (one.seconds, map(one.link.seconds, one.sizes)))
        everything += [*times, *fit]
        look = theme.result(f"{one.where}, {one.how}", colour, one.how, symbol)
        figure.add_scatter(x=one.sizes, y=times, **{**look, "mode": "markers"})
        line = theme.predicted_line("fit: latency + bytes / bandwidth", dashes, 2.5)
        figure.add_scatter(x=one.sizes, y=fit, **line)
    figure.layout.xaxis = _bytes("message (bytes)", sizes)
    figure.layout.yaxis = _times(everything, [one.how for one in found])
    return captioned(figure, " ".join(_link_in_words(one, len(found) > 1) for one in found))


def _link_in_words(one: PingPong, several: bool) -> str:
    latency, bandwidth = one.link.latency, one.link.bandwidth
    text = f"A message takes {captions.short_time(latency)} plus 1 s for every {captions.nbytes(bandwidth)}"
    text = f"{one.where[0].upper()}{one.where[1:]} ({one.how}): a{text[1:]}" if several else text
    return f"{text}; at {captions.nbytes(latency * bandwidth)} the two parts are equal."


def collective_times(times: Sequence[CollectiveTime], over: str = "bytes") -> Figure:
    """Draw the times of all-reduce algorithms on logarithmic axes. The axis names the clock.

    Solid lines are measured or paced, broad and faint lines are simulated, and dashed lines are predicted.

    Parameters
    ----------
    times : sequence of CollectiveTime
        Results of :func:`dlpar.lab.time_collectives` and :func:`dlpar.lab.predict_collectives`, in any order.
    over : {"bytes", "ranks"}, default "bytes"
        Horizontal axis. There is a line for every value of the other quantity.

    Raises
    ------
    ValueError
        If `over` is neither, or there are no times.
    """
    require(over in ("bytes", "ranks"), f"over: got {over!r}, allowed is bytes or ranks")
    times = listed(times, CollectiveTime, "times")
    here = {t: (t.nbytes, t.ranks) if over == "bytes" else (t.ranks, t.nbytes) for t in times}
    places, others = (sorted(set(column)) for column in zip(*here.values()))
    across = _bytes("tensor (bytes)", places) if over == "bytes" else theme.log_axis("ranks", places)
    figure = blank(xaxis=across, yaxis=_times([1e3 * t.seconds for t in times], [t.how for t in times]))
    lines = defaultdict[tuple[str, str, float], list[CollectiveTime]](list)
    for timing, (_, other) in sorted(here.items(), key=lambda item: item[1]):
        lines[timing.how, timing.name, other].append(timing)
    for (how, name, other), own in sorted(lines.items(), key=lambda line: theme.DRAWN.index(line[0][0])):
        colour, symbol = theme.ALLREDUCES.get(name, (theme.GREY, "cross"))
        label = name.replace("_", "-")
        if len(others) > 1:  # the marker distinguishes sizes or ranks
            label += f", {captions.nbytes(other)}" if over == "ranks" else f", {other} ranks"
            symbol = theme.MARKERS[others.index(other) % len(theme.MARKERS)]
        look = theme.result(f"{label}, {how}", colour, how, symbol)
        figure.add_scatter(x=[here[t][0] for t in own], y=[1e3 * t.seconds for t in own], **look)
    seconds = {how: {t[:3]: t.seconds for t in times if t.how == how} for how in theme.ORDER}
    sentences = [_ends(here, over, len(others) > 1), *captions.errors(seconds, most=10)]
    return captioned(figure, " ".join(sentences))


def _ends(here: dict[CollectiveTime, tuple[float, float]], over: str, several: bool) -> str:
    """Return the times at both ends of the longest line.

    Of equally long lines, the most trusted source counts.
    """
    places = {how: [place for t, (place, _) in here.items() if t.how == how] for how in theme.ORDER}
    how = max(filter(places.get, theme.ORDER), key=lambda how: max(places[how]) / min(places[how]))
    parts = []
    for place in dict.fromkeys((min(places[how]), max(places[how]))):
        where = captions.nbytes(place) if over == "bytes" else f"{place} ranks"
        each = []
        for timing in sorted(here, key=lambda t: t.seconds):
            if timing.how == how and here[timing][0] == place:
                size = f"({captions.nbytes(timing.nbytes)}) " if several and over == "ranks" else ""
                each.append(f"{timing.name.replace('_', '-')} {size}{captions.short_time(timing.seconds)}")
        parts.append(f"{where}: {captions.listed(each)}")
    return f"{how.capitalize()} at {'; at '.join(parts)}."


def _bytes(title: str, sizes: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis of bytes."""
    ends = min(sizes), max(sizes)
    return theme.log_axis(title, theme.round_numbers(*ends, (1,)), captions.nbytes, ends)


def _times(times_ms: Sequence[float], hows: Sequence[str]) -> dict[str, Any]:
    """Return a logarithmic axis of time that names its sources' clocks."""
    title = theme.on_clock("time (ms)", *(world for world, how in theme.HOW.items() if how in hows))
    return theme.log_axis(title, theme.round_numbers(0.9 * min(times_ms), 1.1 * max(times_ms)))


# ---- communication beside computing ------------------------------------------------------


def exposed(outcomes: Sequence[Outcome], titles: Names = None) -> Figure:
    """Draw a bar for each experiment, with its computation (length 1) and exposed communication.

    A mark shows the closed form of the whole step, if there is one.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Outcomes of one or more finished runs: see :func:`dlpar.lab.sweep.run_all`.
    titles : sequence of str, optional
        Name of each experiment; default: the settings in which it differs from the others.

    Raises
    ------
    ValueError
        If there is no outcome, or a run is not done.
    """
    for bad in (outcomes := listed(outcomes, Outcome, "outcomes")):
        got = f"got one that is {bad.status} ({bad.reason})"
        require(bad.status == "done", f"outcomes: {got}, allowed are those that are done")
    names = list(titles or labels([outcome.experiment for outcome in outcomes]))
    rows = []
    for name, o in zip(names, outcomes):
        form = o.predicted_step_s and 1e3 * o.predicted_step_s
        rows.append((name, 1e3 * o.compute_s, 1e3 * o.step_s, form, o.step_s / o.compute_s - 1))
    _, computing, _, forms, beyond = zip(*rows)
    predicted = [form and form / own for form, own in zip(forms, computing)]
    how = {theme.HOW[o.experiment.cluster.world] for o in outcomes}
    suffix = f", {how.pop()}" if len(how) == 1 else ""
    parts = {
        f"computing{suffix}": (theme.phase_bar("forward"), [1.0] * len(names)),
        f"exposed communication{suffix}": (theme.phase_bar("communicate"), beyond),
    }
    figure = stacked("time of a step (times its computing)", names, parts, ("predicted", predicted))
    heads = ("", "computing (ms)", "step (ms)", "predicted step (ms)", "exposed (share of computing)")
    each = captions.listed(f"{name} {share:.1%}" for name, share in zip(names, beyond))
    sentence = f"Exposed communication of a step, as a share of its computing time: {each}."
    sentence = _with_error(sentence, predicted, [1 + share for share in beyond])
    return captioned(figure, sentence, (heads, rows), open=True)


def _with_error(sentence: str, predicted: Sequence[float | None], found: Sequence[float]) -> str:
    """Return the sentence about the largest error of the predictions."""
    known = {n: value for n, value in enumerate(predicted) if value}
    return " ".join([sentence, *captions.errors({"measured": dict(enumerate(found)), "predicted": known})])


def sending(experiment: Experiment) -> Figure:
    """Draw a step's predicted computation and communication, from its start to the end of its last bucket.

    A bucket is sent when its gradients are ready and the previous bucket has left. Each takes 2 (N-1) (a +
    b/N) (Li et al., "PyTorch Distributed", VLDB 2020, figure 4; Shi, Chu and Li, arXiv 1811.11141, section
    III).

    Parameters
    ----------
    experiment : Experiment
        An overlapped ring of ranks that stand in for a workload.

    Raises
    ------
    ValueError
        If the experiment is of another kind, or its workers are not equally and always fast.
    """
    experiment = experiment_of(experiment, "experiment")
    sync, name = experiment.sync, experiment.cluster.stand_in_for
    wanted = "an overlapped ring, without micro-batches, that stands in for a workload"
    fine = sync.scheme == "ring" and sync.allreduce == "ring" and sync.overlap and name is not None
    fine = fine and experiment.split.kind == "data" and experiment.split.microbatches == 1
    require(fine, f"experiment: got other than {wanted}, allowed is that")
    charged, platform = workload(name), platform_of(experiment)
    even = platform.overlap == 1 and not platform.stragglers and platform.timing.kind == "constant"
    even = even and not platform.device.overhead and experiment.delays == type(experiment.delays)()
    require(even, "experiment: got workers that are delayed, or slowed by messages; allowed are equal ones")
    computing = 1e3 * platform.device.seconds(experiment.local_batch(0) * charged.flops, charged)
    link = platform.link(same_node=experiment.workers <= platform.devices)
    nbytes = [charged.itemsize * layer.parameters for layer in charged.layers]
    done = [flops / charged.flops for flops in accumulate(layer.flops for layer in charged.layers)]
    sent, free = [], 0.0
    for members in buckets(nbytes, sync.bucket_mb * 1e6):
        whole, largest = sum(nbytes[i] for i in members), max(members, key=nbytes.__getitem__)
        ready = computing * (1 / 3 + 2 / 3 * done[members[-1]])
        begins = max(ready, free)
        free = begins + 1e3 * collective_seconds("ring", experiment.workers, whole, link)
        sent.append((charged.layers[largest].name, whole / 1e6, ready, begins, free))
    layers, megabytes, ready, begins, ends = zip(*sent)
    lengths = [end - begin for begin, end in zip(begins, ends)]
    most = max(range(len(sent)), key=megabytes.__getitem__)
    busy, longest = captions.quantity(sum(lengths)), captions.quantity(lengths[most])
    sentence = (
        f"Predicted for {name}: {len(sent)} buckets keep the link busy for {busy} ms; the largest, {layers[most]} "
        f"with {captions.quantity(megabytes[most])} MB, for {longest} ms. "
        f"{captions.quantity(max(0.0, free - computing))} ms of communication come after the backward pass."
    )
    title, end = "time since the step began, predicted (ms)", theme.rounded_up(max(computing, free))
    rows = theme.rows(["computing", "sending"], range=[1.6, -0.6])
    figure = blank(300, xaxis=theme.axis(title, (0, end)), yaxis=rows, barmode="overlay", bargap=0.25)
    gantt(figure, [(0, 0.0, computing / 3, "")], **theme.phase_bar("forward"))
    gantt(figure, [(0, computing / 3, 2 / 3 * computing, "")], **theme.phase_bar("backward"))
    own = {"name": "a bucket", "textposition": "none", "hoverinfo": "text"}
    bar = theme.phase_bar("communicate")
    bar["marker"]["line"] = {"width": 2, "color": "#ffffff"}
    texts = map("{}: {:.3g} MB".format, layers, megabytes)
    gantt(figure, zip([1] * len(sent), begins, lengths, texts), **bar | own)
    figure.add_scatter(x=ready, y=[0.52] * len(sent), **theme.LOOKS["ready"])
    heads = ("largest layer", "MB", "ready (ms)", "begins (ms)", "ends (ms)")
    return captioned(figure, sentence, (heads, sent))


POINTS = 80
"""Number of sizes at which the prediction is drawn. It jumps where a layer moves to another bucket."""


def bucket_sizes(outcomes: Sequence[Outcome]) -> Figure:
    """Draw the time of a step and its closed form against the bucket size on a logarithmic axis.

    The dotted line is the computation alone. No step can be faster.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Outcomes of two or more finished runs of one experiment: a ring all-reduce with several bucket sizes.

    Raises
    ------
    ValueError
        If there are fewer than two outcomes, or their experiments differ in other settings.
    """
    given = listed(outcomes, Outcome, "outcomes")
    done = sorted((o for o in given if o.status == "done"), key=lambda o: o.experiment.sync.bucket_mb)
    wanted = "buckets of several sizes in one experiment"
    fine = len(done) > 1 and len(set(map(_but_buckets, done))) == 1
    require(fine, f"outcomes: got other than {wanted}, allowed are two or more")
    experiment, computing = done[0].experiment, 1e3 * done[0].compute_s
    how, colour = theme.HOW[experiment.cluster.world], theme.RUNS[0]
    sizes, times = [o.experiment.sync.bucket_mb for o in done], [1e3 * o.step_s for o in done]
    predicted = [o.predicted_step_s and 1e3 * o.predicted_step_s for o in done]
    sizes_drawn = np.geomspace(sizes[0], sizes[-1], POINTS).tolist()
    forms = {mb: predict(experiment.replace(sync={"bucket_mb": mb})) for mb in sizes_drawn}
    curve = [(mb, 1e3 * form.seconds) for mb, form in forms.items() if form]
    everything = [computing, *times, *(ms for _, ms in curve)]
    margin = 0.1 * (max(everything) - min(everything))
    limits, ends = (min(everything) - margin, max(everything) + margin), (sizes[0], sizes[-1])
    xaxis = theme.log_axis("bucket (MB)", theme.round_numbers(*ends, (1,)), ends=ends)
    yaxis = theme.axis(theme.on_clock("time of a step (ms)", experiment.cluster.world), limits)
    figure, alone = blank(xaxis=xaxis, yaxis=yaxis), {"mode": "lines", "line": theme.IDEAL}
    figure.add_scatter(x=ends, y=[computing] * 2, name="computing alone", **alone)
    figure.add_scatter(x=sizes, y=times, **theme.result(how, colour, how))
    if curve:
        x, y = zip(*curve)
        figure.add_scatter(x=x, y=y, **theme.predicted_line("predicted", colour, 1.5))
    best = min(range(len(times)), key=times.__getitem__)
    ms = [captions.quantity(value) for value in times]
    both = captions.listed(f"{ms[n]} ms with {captions.quantity(sizes[n])} MB" for n in (0, -1))
    sentence = (
        f"{how.capitalize()}: the fastest step takes {ms[best]} ms, with buckets of "
        f"{captions.quantity(sizes[best])} MB; a step takes {both}, "
        f"and computing alone {captions.quantity(computing)} ms."
    )
    table = ("bucket (MB)", "step (ms)", "predicted step (ms)"), list(zip(sizes, times, predicted))
    return captioned(figure, _with_error(sentence, predicted, times), table, open=True)


def _but_buckets(outcome: Outcome) -> str:
    """Return an experiment with its bucket size removed."""
    experiment, sync = outcome.experiment, outcome.experiment.sync
    require(sync.scheme == "ring", f"outcomes: got {sync.scheme}, allowed is ring: others send no buckets")
    return experiment.model_copy(update={"sync": sync.model_copy(update={"bucket_mb": 1.0})}).to_json()
