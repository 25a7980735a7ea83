"""Lab 08: one model on several ranks: the parts each holds, the messages between them, and the reason to do it."""

from __future__ import annotations

from dlpar.config.experiment import Experiment
from dlpar.course.platforms import platform_file
from dlpar.course.rehearse import Row, Shown, apart, speedup
from dlpar.jobs.run import Run
from dlpar.lab import figures

NVLINK = "v100-nvlink"
"""Eight V100 in one machine."""

LINKS = {
    "NVLink": NVLINK,
    "100gb-ib": platform_file("v100-each-100gb-ib"),
    "10gbe": platform_file("v100-each-10gbe"),
}
"""Eight V100 on three links: in one machine, and each in a machine of its own."""


def split_in_two() -> Experiment:
    """A small cnn on two real ranks, by channels; its images may be cut, too."""
    return Experiment(
        workers=2,
        model={"name": "cnn", "width": 64},
        split="tensor",
        batch=64,
        steps=40,
        dtype="float64",
        evaluate_every=20,
    )


def _same_losses(runs: list[Run]) -> Shown:
    worst = apart(*runs)
    return worst < 1e-14, f"losses differ by {worst:.0e} at most"


def heads_and_characters() -> Experiment:
    """A transformer on four ranks, by heads, neurons and characters."""
    return Experiment(
        workers=4,
        model={"name": "transformer", "width": 64, "depth": 2},
        data="docstrings",
        batch=16,
        split="tensor",
        steps=10,
        cluster={"world": "simulated", "platform": NVLINK},
    )


def _closed_form_holds(run: Run) -> Shown:
    table = figures.table(figures.layer_bytes(run.experiment))
    counted, told = table["both (bytes)"], table["closed form (bytes)"]
    return (counted == told).all(), f"{counted.sum():,.0f} bytes a step, predicted {told.sum():,.0f}"


def _one_step(**fields: object) -> Experiment:
    """One simulated step of a perceptron with three hidden layers."""
    return Experiment(steps=1, evaluate_every=1000, **fields)


def faster() -> list[Experiment]:
    """One step of a perceptron of 1,024 neurons a layer, on each of `LINKS`."""
    model = {"name": "mlp", "width": 1024, "depth": 3}
    return [
        _one_step(
            model=model, batch=512, split="tensor", cluster={"world": "simulated", "platform": platform}
        )
        for platform in LINKS.values()
    ]


def _slow_links_make_it_slower(runs: list[Run]) -> Shown:
    nvlink, infiniband, ethernet = (speedup(*runs[i : i + 2]) for i in (0, 2, 4))
    said = f"NVLink, 4 {nvlink:.1f}; InfiniBand, 4 {infiniband:.2f}; 10 GbE, 8 {ethernet:.2f}"
    return nvlink > 2 and infiniband < 1 and ethernet < 0.2, f"times one GPU: {said}"


def pieces_of_images() -> list[Experiment]:
    """20 steps by one process, and with images of 8 × 8 in 3, 2 × 2 and 3 × 2 pieces."""
    whole = Experiment(
        workers=1,
        model={"name": "cnn", "width": 64},
        batch=64,
        steps=20,
        dtype="float64",
        evaluate_every=1000,
        cluster={"world": "simulated"},
    )
    cuts = ((3, 1), (2, 2), (3, 2))
    split = [{"kind": "spatial", "rows": rows, "columns": columns} for rows, columns in cuts]
    return [whole, *(whole.replace(workers=s["rows"] * s["columns"], split=s) for s in split)]


def _to_the_last_digits(runs: list[Run]) -> Shown:
    worst = apart(*runs)
    return worst < 20 * 2.3e-16, f"losses of cut and of whole images differ by {worst:.0e} at most"


def redundant() -> list[Experiment]:
    """A perceptron on four ranks with 10 GbE, its layers in pairs; then all by outputs, with more and more overlap.

    With the least redundancy no neuron is computed twice: 0.001 of 64 neurons is none.
    """
    model = {"name": "mlp", "width": 256, "depth": 3}
    cluster = {"world": "simulated", "platform": LINKS["10gbe"]}
    common = _one_step(workers=4, model=model, batch=1024, cluster=cluster)
    return [common.replace(split={"kind": "tensor", "redundancy": share}) for share in (0, 0.001, 0.5, 1)]


def _pairs_need_neither(runs: list[Run]) -> Shown:
    pairs, none, _, overlap = (1 / run.summary["samples_per_s"] for run in runs)
    said = f"times the step without redundancy: with all {overlap / none:.2f}, by pairs {pairs / none:.2f}"
    return overlap < 0.7 * none and pairs < 1.1 * overlap, said


TABLE = (
    Row(
        split_in_two,
        "Two ranks that share a network learn what one process learns",
        _same_losses,
        lambda: [split_in_two().replace(workers=1, split="data"), split_in_two()],
    ),
    Row(heads_and_characters, "A cut transformer sends the closed form's bytes", _closed_form_holds),
    Row(
        faster,
        '"We split a model to go faster"',
        _slow_links_make_it_slower,
        lambda: [each.replace(workers=n) for each, most in zip(faster(), (4, 4, 8)) for n in (1, most)],
    ),
    Row(pieces_of_images, '"Halos approximate"', _to_the_last_digits),
    Row(redundant, "Computing more sends less; pairs of cuts need neither", _pairs_need_neither),
)
