"""Figures of splits: passes and bubble of a pipeline, memory, who holds what, bytes of each layer."""

import json
from collections import defaultdict

import numpy as np
import pytest

from dlpar import Experiment, lab, spmd
from dlpar.jobs.run import Run
from dlpar.lab import figures
from dlpar.lab.figures.layer_bytes import _count
from dlpar.lab.figures.layer_bytes import drawing as drawn_bytes
from dlpar.lab.figures.pieces import _look, plain
from dlpar.lab.figures.pieces import drawing as drawn_pieces
from dlpar.theory import bubble
from dlpar.theory.pipeline import timeline
from lab.folders import new_folder

MLP3 = {"name": "mlp", "depth": 3, "width": 24}
SMALL = {"name": "transformer", "depth": 2, "width": 16, "heads": 4}
NAMES = {"F": "forward", "B": "backward", "W": "weight"}


def run_of(bars, schedule="1f1b", chunks=2, facts=None, world="real", **split):
    """A run whose ranks did these bars in step 1, and half as quickly in steps 0 and 2."""
    stages = 1 + max(bar.stage for bar in bars)
    micros = 1 + max(bar.micro for bar in bars)
    split = {"kind": "pipeline", "schedule": schedule, "microbatches": micros, "chunks": chunks, **split}
    model, cluster = {"name": "mlp", "depth": 15}, {"world": world}
    experiment = Experiment(workers=stages, steps=3, model=model, split=split, cluster=cluster)
    folder = new_folder(experiment)
    for stage in range(stages):
        records = []
        for step, pace in enumerate((2.0, 1.0, 0.5)):
            spans = [
                [
                    NAMES[bar.kind],
                    step * 1000 + pace * bar.start,
                    step * 1000 + pace * bar.end,
                    bar.micro,
                    bar.chunk,
                ]
                for bar in bars
                if bar.stage == stage
            ]
            end = step * 1000 + pace * max(bar.end for bar in bars)
            spans += [["receive", step * 1000, spans[0][1], 0, 0]] * (stage > 0) + [
                ["update", end, end + 0.1]
            ]
            records.append(
                {
                    "k": "step",
                    "step": step,
                    "t": end,
                    "spans": spans,
                    "loss": 1.0,
                    "samples": 8,
                    **(facts(stage) if facts else {}),
                }
            )
        (folder / f"rank-{stage}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return Run(folder)


@pytest.mark.parametrize(
    ("schedule", "chunks", "weight"),
    [("gpipe", 1, None), ("1f1b", 1, None), ("interleaved", 2, None), ("zb-h1", 1, 1.0)],
)
def test_a_run_without_delays_is_drawn_as_its_ideal_and_has_the_bubble_of_the_closed_form(
    schedule, chunks, weight
):
    times = {"forward": 1.0, "backward": 2.0, "weight": weight}
    figure = lab.pipeline(run_of(timeline(schedule, 4, 8, chunks, **times), schedule, chunks))
    table = figures.table(figure)
    drawn = {way: rows[rows["phase"].isin(NAMES.values())] for way, rows in table.groupby("picture")}
    columns = ["rank", "phase", "micro-batch", "chunk", "start (ms)", "duration (ms)"]
    measured, ideal = (drawn[way].sort_values(columns[:4])[columns] for way in ("measured", "ideal"))
    assert (measured[columns[:4]].to_numpy() == ideal[columns[:4]].to_numpy()).all()
    assert measured["start (ms)"].to_numpy() == pytest.approx(ideal["start (ms)"].to_numpy())
    expected = f"{bubble(schedule, 4, 8, chunks):.1%}"
    assert [note.text for note in figure.layout.annotations] == [
        f"measured: bubble {expected} of computing time",
        f"ideal {schedule}: bubble {expected} of computing time",
    ]
    assert "1.00 times the ideal" in figures.caption(figure)


def test_a_stage_that_is_late_is_seen_in_the_measured_bubble_alone():
    on_time = timeline("gpipe", 2, 4)
    late = [
        bar if bar.kind == "F" else bar._replace(start=bar.start + 12, end=bar.end + 12) for bar in on_time
    ]
    measured, ideal = (note.text for note in lab.pipeline(run_of(late, "gpipe")).layout.annotations)
    assert "bubble 125% of" in measured and "bubble 25.0% of" in ideal  # 12 s more on 12 s of computing


@pytest.mark.parametrize("world, how", [("real", "measured"), ("paced", "paced"), ("simulated", "simulated")])
def test_what_was_not_measured_is_not_called_so(world, how):
    figure = lab.pipeline(run_of(timeline("gpipe", 2, 4), "gpipe", world=world))
    assert figure.layout.annotations[0].text.startswith(f"{how}: bubble ")
    assert set(figures.table(figure)["picture"]) == {how, "ideal"}


def test_passes_carry_their_micro_batch_chunks_differ_and_the_bubble_fills_what_is_left():
    figure = lab.pipeline(run_of(timeline("interleaved", 2, 4, 2), "interleaved"))
    named = defaultdict(list)
    for trace in figure.data:
        named[trace.name].append(trace)
    assert set(named) == {
        *(f"{p}, chunk {c}" for p in ("forward", "backward") for c in (0, 1)),
        "bubble: idle",
        "receive",
        "update",
    }
    assert sorted(named["forward, chunk 0"][0].text) == sorted(["0", "1", "2", "3"] * 2)
    assert len({named[f"forward, chunk {c}"][0].marker.color for c in (0, 1)}) == 2
    assert len({named[f"{p}, chunk 0"][0].marker.pattern.shape for p in ("forward", "backward")}) == 2
    covered = sum(sum(named[name][0].x) for name in named if name not in ("receive", "update"))
    assert covered == pytest.approx(2 * 1e3 * max(bar.end for bar in timeline("interleaved", 2, 4, 2)))


def test_a_schedule_without_a_flush_is_drawn_over_several_steps():
    bars = timeline("pipedream", 2, 12)
    experiment = Experiment(
        workers=2,
        steps=12,
        model=MLP3,
        split={"kind": "pipeline", "schedule": "pipedream", "microbatches": 1},
    )
    folder = new_folder(experiment)
    for stage in (0, 1):
        of_step = defaultdict(list)
        for bar in bars:
            step = max(0, bar.micro - 1 + stage) if bar.kind == "F" and bar.stage == stage else bar.micro
            if bar.stage == stage:
                of_step[min(step, 11)].append([NAMES[bar.kind], bar.start, bar.end, bar.micro, 0])
        lines = [json.dumps({"k": "step", "step": step, "spans": of_step[step]}) for step in range(12)]
        (folder / f"rank-{stage}.jsonl").write_text("\n".join(lines) + "\n")
    figure = lab.pipeline(Run(folder))
    table = figures.table(figure)
    for way in ("measured", "ideal"):
        backward = table[(table["picture"] == way) & (table["phase"] == "backward")]
        assert sorted(set(backward["micro-batch"])) == [4, 5, 6, 7], way
    assert "bubble 0.0% of" in figure.layout.annotations[0].text


def test_what_cannot_be_drawn_is_refused_in_one_sentence():
    run = run_of(timeline("1f1b", 2, 2))
    with pytest.raises(ValueError, match="step: got 7, allowed is a step with spans: 0 to 2"):
        lab.pipeline(run, step=7)
    with pytest.raises(ValueError, match="no memory was recorded, allowed is a run whose ranks compute"):
        lab.memory(run)
    data = Run(new_folder(Experiment(workers=2)))
    with pytest.raises(ValueError, match="got split data, allowed is pipeline or hybrid"):
        lab.pipeline(data)
    with pytest.raises(
        ValueError, match="split: got data, allowed is one of tensor, spatial, pipeline, hybrid"
    ):
        lab.layer_bytes(data)
    with pytest.raises(ValueError, match="workers: got 128, allowed is at most 64"):
        lab.pieces(Experiment(workers=128, cluster={"world": "simulated"}))


def memory_of(stage):
    held = {
        "weights": 2_000_000,
        "gradients": 2_000_000,
        "optimizer": 0,
        "activations": 1_000_000 * (4 - stage),
    }
    return {"memory": held | {"gathered": 0}, "in_flight": min(4 - stage, 4)}


def test_memory_is_stacked_by_kind_and_flights_follow_the_schedule():
    figure = lab.memory(run_of(timeline("1f1b", 4, 8), facts=memory_of))
    bars = {trace.name: list(trace.x) for trace in figure.data if trace.type == "bar"}
    assert bars == {"weights": [2] * 4, "gradients": [2] * 4, "activations": [4, 3, 2, 1]}
    flights = [max(trace.y) for trace in figure.data if trace.type == "scatter"]
    assert flights == [4, 3, 2, 1] and all(
        trace.y[-1] == 0 for trace in figure.data if trace.type == "scatter"
    )
    assert "rank 0 held 8 MB, 50% of it activations; rank 3 held the least, 5 MB" in figures.caption(figure)
    assert "at most 4 micro-batches were in flight" in figures.caption(figure)


def test_memory_of_sharded_runs_stands_beside_the_closed_form():
    runs = []
    for zero, parts in ((0, 1), (3, 2)):
        experiment = Experiment(workers=2, model=MLP3, split={"kind": "data", "zero": zero}, optimizer="adam")
        folder, n = new_folder(experiment), 3010 * 4 // parts
        held = {"weights": n, "gradients": n, "optimizer": 2 * n, "activations": 100, "gathered": 50}
        for rank in range(2):
            (folder / f"rank-{rank}.jsonl").write_text(
                json.dumps({"k": "step", "step": 0, "memory": held}) + "\n"
            )
        runs.append(Run(folder))
    figure = lab.memory(runs)
    (marks,) = [trace for trace in figure.data if trace.type == "scatter"]
    assert list(marks.x) == pytest.approx([48.16, 24.08])
    assert list(figure.layout.yaxis.ticktext) == ["split.zero=0", "split.zero=3"]
    assert list(lab.memory(runs, titles=["whole", "ZeRO 3"]).layout.yaxis.ticktext) == ["whole", "ZeRO 3"]
    assert "differ from the closed form by less than 0.1%" in figures.caption(figure)


HELD = {
    "data": Experiment(workers=4, model=MLP3),
    "zero 1": Experiment(workers=4, model=MLP3, split={"kind": "data", "zero": 1}),
    "zero 3": Experiment(workers=4, model=MLP3, split={"kind": "data", "zero": 3}),
    "tensor": Experiment(workers=4, model=MLP3, split={"kind": "tensor", "tensor": 2}),
    "spatial": Experiment(workers=4, model="cnn", split={"kind": "spatial", "rows": 2, "columns": 2}),
    "pipeline": Experiment(workers=4, model=MLP3, split="pipeline", batch=32),
    "hybrid": Experiment(
        workers=4, model=SMALL, data="docstrings", batch=8, split={"kind": "hybrid", "microbatches": 2}
    ),
}
"""Experiments on four ranks, all asked in one job."""


@pytest.fixture(scope="module")
def held():
    experiments = [plain(e, dtype="float64") for e in HELD.values()]
    # A group each: what ranks make once, they make once a group.
    ranks = spmd(
        lambda comm, all_of: [_look(comm.split(0), e) for e in all_of], experiments, world="simulated"
    )
    return {name: [rank[number] for rank in ranks] for number, name in enumerate(HELD)}


def copies(ranks):
    """How many ranks hold each element of each parameter or image."""
    found = {name: np.zeros(shape, dtype=int) for name, shape in ranks[0].shapes.items()}
    for rank in ranks:
        for name, (top, bottom), (left, right) in rank.pieces:
            found[name][top:bottom, left:right] += 1
    return found


def test_every_element_is_held_as_often_as_the_split_says(held):
    once = {
        name: set(np.unique(np.concatenate([c.ravel() for c in copies(held[name]).values()])))
        for name in held
    }
    assert once["data"] == {4} and once["zero 1"] == once["zero 3"] == once["pipeline"] == {1}
    assert once["tensor"] == {2, 4}  # two replicas; every rank of one has the bias of a layer cut by inputs
    spatial = copies(held["spatial"])
    assert {int(n) for name, c in spatial.items() for n in c.ravel() if name.startswith("image.")} == {1}
    assert {int(n) for name, c in spatial.items() for n in c.ravel() if not name.startswith("image.")} == {4}
    assert (
        copies(held["hybrid"])["embed.token.weight"] == 2
    ).all()  # tied: on the first stage and on the last


def test_tensor_ranks_hold_rows_of_one_layer_and_columns_of_the_next(held):
    first = {piece.name: piece for piece in held["tensor"][0].pieces}
    assert first["linear1.weight"].rows == (0, 12) and first["linear1.weight"].columns == (0, 64)
    assert first["linear2.weight"].rows == (0, 24) and first["linear2.weight"].columns == (0, 12)
    assert held["tensor"][0].pieces == held["tensor"][2].pieces != held["tensor"][1].pieces


def test_halo_of_a_piece_reaches_one_pixel_into_its_neighbours(held):
    halos = {piece.name: piece for piece in held["spatial"][3].halos}
    assert halos["image.conv1"].rows == (3, 8) and halos["image.conv1"].columns == (3, 8)


@pytest.mark.parametrize("name", HELD)
def test_pieces_are_drawn_one_colour_for_equal_holdings(held, name):
    figure = drawn_pieces(HELD[name], held[name])
    groups = [trace for trace in figure.data if trace.showlegend is not False and trace.name != "not held"]
    assert len(groups) == {"data": 1, "tensor": 2}.get(name, 4)
    assert len({(trace.marker.color, trace.marker.pattern.shape) for trace in groups}) == len(groups)
    assert len(figures.table(figure)) == sum(len(rank.pieces) + len(rank.halos) for rank in held[name])
    assert figures.caption(figure).endswith(".") and "rank 0" in figure.layout.xaxis.ticktext[0]
    figure.to_json()


def test_pieces_of_an_experiment_with_servers_are_those_of_its_workers():
    elsewhere = {"world": "simulated", "platform": "p100-25gbe"}
    servers = {"scheme": "ps", "servers": 2}
    figure = lab.pieces(Experiment(workers=2, model=MLP3, split="tensor", sync=servers, cluster=elsewhere))
    assert len(figure.layout.xaxis.ticktext) == 2
    assert figures.caption(figure).startswith("Each rank holds ")


SENT = {
    "mlp": Experiment(workers=4, model=MLP3, split="tensor", batch=10),
    "even": Experiment(workers=4, model={**MLP3, "depth": 2}, split="tensor", batch=10),
    "redundant": Experiment(workers=4, model=MLP3, batch=10, split={"kind": "tensor", "redundancy": 0.5}),
    "cnn": Experiment(workers=4, model="cnn", batch=10, split="tensor", dtype="float64"),
    "transformer": Experiment(workers=4, model=SMALL, data="docstrings", batch=6, split="tensor"),
    "spatial": Experiment(
        workers=4, model="cnn", batch=6, split={"kind": "spatial", "rows": 2, "columns": 2}
    ),
    "strips": Experiment(workers=4, model="cnn", batch=6, split="spatial"),
    "pipeline": Experiment(workers=4, model=MLP3, batch=32, split={"kind": "pipeline", "schedule": "zb-h1"}),
    "chunks": Experiment(
        workers=2, model=MLP3, batch=32, split={"kind": "pipeline", "schedule": "interleaved"}
    ),
    "hybrid": Experiment(
        workers=4, model=SMALL, data="docstrings", batch=8, split={"kind": "hybrid", "microbatches": 3}
    ),
}
"""Experiments whose layers send, in one job; one is on two ranks, and asked on two pairs."""


@pytest.fixture(scope="module")
def sent():
    def ask(comm, all_of):
        return [_count(comm.split(comm.rank // e.workers), e) for e in all_of]

    ranks = spmd(ask, [plain(e) for e in SENT.values()], world="simulated")
    return {
        name: [rank[number] for rank in ranks][: e.workers] for number, (name, e) in enumerate(SENT.items())
    }


@pytest.mark.parametrize("name", SENT)
def test_bytes_of_every_layer_are_those_of_the_closed_form(sent, name):
    figure = drawn_bytes(SENT[name], sent[name])
    table = figures.table(figure).set_index("layer")
    assert (
        list(table["both (bytes)"]) == list(table["closed form (bytes)"])
        and (table["both (bytes)"] > 0).all()
    )
    assert "each is equal to the closed form, to the byte" in figures.caption(figure)


def test_bytes_of_a_run_are_counted_in_a_job_of_their_own():
    figure = lab.layer_bytes(Experiment(workers=2, model=SMALL, data="docstrings", batch=4, split="tensor"))
    block = figures.table(figure).set_index("layer").loc["block1"]
    assert block["both (bytes)"] == 2 * 8 * 4 * 32 * 16 // 2 * 4  # ranks · 8·b·s·h·(t-1)/t · bytes
    assert block["forward (bytes)"] == block["backward (bytes)"]
