"""Labs 00, 01 and 03: averaging gradients, by map-reduce, by trees and around rings."""

from __future__ import annotations

from dlpar.course import presets
from dlpar.course.rehearsal.stage import Stage, apart, pace, trial

# ---- 00 -----------------------------------------------------------------------------


@trial("00")
def first_run(stage: Stage) -> tuple[bool, str]:
    """Four processes learn to read digits."""
    accuracy = stage.run(presets.first_run()).summary["accuracy"]
    return accuracy >= 0.95, f"{accuracy:.1%} of held-out digits are right"


@trial("00")
def four_times_faster(stage: Stage) -> tuple[bool, str]:
    """ "Four processes are four times faster"."""
    rate = {
        run.experiment.workers: run.summary["samples_per_s"] for run in stage.run(presets.four_times_faster())
    }
    most = max(rate)
    gained = rate[most] / rate[1]
    return (
        gained < 0.75 * most,
        f"{most} processes on {presets.cores()} cores are {gained:.1f} times as fast as one",
    )


@trial("00")
def four_gpus(stage: Stage) -> tuple[bool, str]:
    """With a processor each they nearly are."""
    one, four = stage.run([presets.four_gpus().replace(workers=n) for n in (1, 4)])
    gained = four.summary["samples_per_s"] / one.summary["samples_per_s"]
    return 3.4 < gained < 4, f"four ranks with a GPU each are {gained:.1f} times as fast as one"


@trial("00")
def same_answer(stage: Stage) -> tuple[bool, str]:
    """ "Parallel training changes the answer"."""
    worst = apart(*stage.run(presets.same_answer()))
    return worst < 1e-9, f"losses of 1 to 4 processes differ by {worst:.0e} at most"


# ---- 01 -----------------------------------------------------------------------------


@trial("01")
def mean_of_means(stage: Stage) -> tuple[bool, str]:
    """ "The mean of the workers' means is the mean"."""
    *right, wrong = (run.curve["loss"].iloc[-1] for run in stage.run(presets.mean_of_means()))
    same = max(right) - min(right) < 1e-6 * min(right)
    return same and wrong > 1.001 * max(
        right
    ), f"uneven parts end at {wrong:.4f}, all others at {right[0]:.4f}"


@trial("01")
def tree_or_star(stage: Stage) -> tuple[bool, str]:
    """ "A tree always beats a star"."""
    took = {(t.name, t.nbytes): t.seconds for t in stage.collectives(presets.tree_or_star())}
    short, long = (took["tree", size] / took["star", size] for size in (1_000, 400_000))
    return (
        short > 2 and long < 0.5,
        f"the tree takes {short:.1f} times the star's time for 1 kB, {long:.2f} for 400",
    )


@trial("01")
def digits_by_mapreduce(stage: Stage) -> tuple[bool, str]:
    """Softmax regression learns by map-reduce, on 1, 2 and 4 workers."""
    found = [run.summary["accuracy"] for run in stage.run(presets.digits_by_mapreduce())]
    return min(found) > 0.9, f"{min(found):.1%} of held-out digits are right, or more"


@trial("01")
def unsteady(stage: Stage) -> tuple[bool, str]:
    """Unsteady workers of the same mean take longer together."""
    even, random = (pace(run) for run in stage.run(presets.unsteady()))
    return random > 1.3 * even, f"{1e3 * even:.0f} ms a step, and {1e3 * random:.0f} ms where times vary"


@trial("01")
def empty_samples(stage: Stage) -> tuple[bool, str]:
    """Workers without a sample do no harm to a sum."""
    run = stage.run(presets.empty_samples())
    none = float((run.steps["samples"] == 0).mean())
    good = run.curve["loss"].notna().all() and run.summary["accuracy"] > 0.8
    return (
        good and none > 0.1,
        f"no sample in {none:.0%} of steps, {run.summary['accuracy']:.0%} right in the end",
    )


# ---- 03 -----------------------------------------------------------------------------


@trial("03")
def ring_run(stage: Stage) -> tuple[bool, str]:
    """Four workers on a ring learn to read digits."""
    accuracy = stage.run(presets.ring_run()).summary["accuracy"]
    return accuracy > 0.9, f"{accuracy:.1%} of held-out digits are right"


@trial("03")
def copies(stage: Stage) -> tuple[bool, str]:
    """ "A ring sends N copies"."""
    from dlpar.theory.counts import closed_form
    from dlpar.theory.steps.sizes import sizes

    held, said = True, []
    for run in stage.run(presets.copies()):
        n, steps, weights = run.experiment.workers, run.experiment.steps, sizes(run.experiment).elements
        sent = run.summary["bytes_sent"]
        held = held and sent == steps * closed_form("ring", ranks=n, elements=weights, itemsize=4).bytes
        said.append(f"{sent / n / steps / (4 * weights):.2f} copies with {n}")
    return held, f"a rank sends {', '.join(said)}"


@trial("03")
def more_ranks(stage: Stage) -> tuple[bool, str]:
    """ "A ring's time does not depend on N"."""
    took = {(t.ranks, t.nbytes): t.seconds for each in presets.more_ranks() for t in stage.collectives(each)}
    short, long = took[512, 4_000] / took[2, 4_000], took[128, 16_000_000] / took[2, 16_000_000]
    return short > 300 and 2 < long < 3, f"4 kB take {short:.0f} times as long on 512 ranks as on 2"


@trial("03")
def ring_always_wins(stage: Stage) -> tuple[bool, str]:
    """ "A ring always wins"."""
    own = _in_order(stage, presets.OWN_CARDS, 1_200_000)
    shared = _in_order(stage, presets.SHARED_CARDS, 178_000_000)
    held = own[-1] == "ring" and shared[0] == "ring"
    return held, f"1.2 MB, a card each: {', '.join(own)}; 178 MB, shared cards: {', '.join(shared)}"


def _in_order(stage: Stage, platform: str, size: int) -> list[str]:
    """All-reduces, the quickest first."""
    times = [t for t in stage.collectives(presets.ring_always_wins(platform)) if t.nbytes == size]
    return [t.name.replace("_", "-") for t in sorted(times, key=lambda t: t.seconds)]


@trial("03")
def fewer_bytes(stage: Stage) -> tuple[bool, str]:
    """Compressed gradients train as well, and bf16 saves nothing on four ranks."""
    runs = stage.run(presets.fewer_bytes())
    whole, half, onebit, topk = (run.summary["bytes_sent"] for run in runs)
    held = (
        min(run.summary["accuracy"] for run in runs) > 0.92
        and half == whole
        and max(onebit, topk) < 0.07 * whole
    )
    share = f"bf16 {half / whole:.0%}, one bit {onebit / whole:.1%}, top 1 % {topk / whole:.1%}"
    return held, f"of float32's bytes: {share}"


@trial("03")
def slow_rank(stage: Stage) -> tuple[bool, str]:
    """One slow rank slows all."""
    even, slow = (pace(run) for run in stage.run(presets.slow_rank()))
    return slow > 1.5 * even, f"a step takes {1e3 * even:.0f} ms, with one slow rank {1e3 * slow:.0f} ms"
