"""Simulated jobs as a user starts them: records, results, and one sentence for what cannot be."""

from __future__ import annotations

import pytest
import torch
from conftest import eventually

import dlpar
from dlpar import BadExperiment, Experiment, Run
from dlpar.worlds.platforms import Link, Platform

SIZES = {"world": "simulated", "messages": "sizes"}


@pytest.mark.slow
def test_512_workers_leave_a_run_that_is_read_like_any_other():
    experiment = Experiment(
        workers=512,
        steps=3,
        scaling="weak",
        cluster={**SIZES, "platform": "p100-25gbe-roce", "stand_in_for": "resnet101"},
        sync={"allreduce": "halving_doubling", "bucket_mb": 200},
        batch=32,
    )
    job = dlpar.launch(experiment)
    eventually(lambda: job.run.status == "running", 60, "a simulated run is seen to run")
    run = Run(job.wait(100).id)
    assert (run.status, run.world, run.clock) == ("done", "simulated", "virtual")
    assert sorted(path.name for path in run.path.glob("rank-*.jsonl")) == ["rank-all.jsonl"]
    assert (
        len(run.ranks) == 512
        and set(run.ranks["clock"]) == {"virtual"}
        and set(run.ranks["role"]) == {"worker"}
    )
    assert len(run.steps) == 3 * 512 and list(run.steps["rank"].unique()) == list(range(512))
    assert run.steps["loss"].isna().all()  # nobody computed one
    assert (
        list(run.curve["step"]) == [0, 1, 2] and run.curve["samples"].iloc[-1] == 3 * experiment.global_batch
    )
    # 178 MB of gradient halved and doubled: each sends 511/512 of it twice, to a chunk's rounding
    nbytes = 2 * 511 * 4 * 44_549_160
    assert run.curve["bytes"].iloc[-1] == pytest.approx(3 * nbytes, rel=1e-3)
    assert run.summary["clock"] == "virtual" and run.summary["workers"] == 512
    step = run.curve["seconds"].diff().iloc[-1]
    assert 0 < run.steps["compute"].iloc[-1] < step < 2
    assert (run.steps["wait"] >= 0).all() and run.steps["wait"].max() > 0


@pytest.mark.slow
def test_spmd_runs_a_cell_in_the_simulated_world():
    def ring(comm):
        from dlpar.collectives import ring_allreduce

        value = torch.full((8,), comm.rank + 1.0)
        ring_allreduce(comm, value)
        return value.unique().tolist(), comm.now(), comm.world.clock, comm.world.carrier

    told = dlpar.spmd(ring, workers=8, world="simulated", platform="p100-10gbe")
    assert [values for values, *_ in told] == [[36.0]] * 8
    assert all(0 < seconds < 1e-3 for _, seconds, *_ in told)
    assert {each[2:] for each in told} == {("virtual", "simulated")}


@pytest.mark.slow
def test_spmd_takes_thousands_of_ranks_whose_messages_carry_sizes_and_a_platform_from_a_file(tmp_path):
    platform = Platform(
        name="mine", device="v100", nodes=2048, between=Link(1e-3, 1e6), source="made up for the test"
    ).model_dump_json()
    (tmp_path / "mine.json").write_text(platform)

    def funnel(comm):
        if comm.rank:
            comm.send(comm.empty(250), 0)
            return None
        heard = [comm.recv(comm.empty(250)).source for _ in range(comm.size - 1)]
        return heard == list(range(1, comm.size)), comm.now()

    told = dlpar.spmd(
        funnel, workers=2000, world="simulated", messages="sizes", platform=str(tmp_path / "mine.json")
    )
    assert told[0] == (True, pytest.approx(1e-3 + 1999e-3))


def test_a_long_step_of_many_ranks_counts_as_progress(tmp_path):
    """Thousands of ranks may take longer to a line of record than a job is given without one."""
    import time

    from simulations import cluster

    from dlpar.jobs import diagnosis
    from dlpar.jobs.record import RankFile
    from dlpar.worlds.simulated.run import run_program, simulated_world

    file = RankFile(tmp_path / "rank-all.jsonl")
    file.add({"k": "rank"})
    stamps = [diagnosis.stamp_of(tmp_path / "rank-all.jsonl")]

    def moved() -> None:
        file.touch()
        stamps.append(diagnosis.stamp_of(tmp_path / "rank-all.jsonl"))

    until = time.monotonic() + 1.0  # the same for both, or one may have several rounds more to go

    def chat(comm):
        while time.monotonic() < until:
            comm.sendrecv(comm.empty(1), 1 - comm.rank, comm.empty(1), 1 - comm.rank)
        comm.isend(comm.empty(0), 1 - comm.rank)  # for whoever is in one more round

    run_program(*simulated_world([0, 1], cluster(), False), chat, patience=0.4, on_move=moved)
    assert len({size for size, _ in stamps}) == 1 and len({at for _, at in stamps}) == len(stamps) >= 4


BAD = [
    (dict(workers=2, cluster={"world": "simulated", "platform": "k90-25gbe"}),
     r"cluster\.platform: got 'k90-25gbe', allowed is one of"),
    (dict(workers=9, cluster={"world": "simulated", "platform": "v100-nvlink"}, batch=90),
     r"cluster\.platform: got 'v100-nvlink' for 9 ranks, allowed there is at most 8 \(1 node of 8\)"),
    (dict(workers=257, scaling="weak", cluster={"world": "simulated"}),
     "workers: got 257, allowed where simulated ranks really compute is at most 256; messages sizes takes 4096"),
    (dict(workers=4097, scaling="weak", cluster=SIZES), "workers: got 4097"),
    (dict(workers=2, cluster={"world": "simulated", "stand_in_for": "resnet9000"}),
     r"cluster\.stand_in_for: got 'resnet9000', allowed is one of"),
    (dict(workers=2, cluster={"messages": "sizes"}),
     r"cluster\.messages: got 'sizes', allowed with world real is values"),
    (dict(workers=2, cluster={"world": "virtual"}),
     r"cluster\.world: got 'virtual', allowed is one of real, paced, simulated"),
    (dict(workers=2, cluster={"world": "simulated", "carrier": "nccl"}),
     r"cluster\.carrier: got 'nccl', allowed with world simulated is auto or mpi"),
    (dict(workers=2, cluster=SIZES, sync={"scheme": "hogwild"}),
     r"cluster\.messages: got 'sizes', allowed with sync hogwild is values"),
]  # fmt: skip


@pytest.mark.parametrize("fields, sentence", BAD)
def test_what_cannot_be_simulated_is_refused_in_one_sentence(fields, sentence):
    with pytest.raises(BadExperiment, match=sentence) as said:
        Experiment(**fields)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    "text, sentence",
    [
        (
            '{"name": "p", "device": "v100", "nodes": 4, "between": {"latency": 1e-5, "bandwidth": -1}}',
            r"where between\.bandwidth: got -1, allowed is a finite number above 0",
        ),
        (
            '{"name": "p", "device": "v900", "nodes": 4, "between": {"latency": 1e-5, "bandwidth": 1e9}}',
            "where device: got 'v900', allowed is one of",
        ),
        (
            '{"name": "p", "device": "v100", "nodes": 3, "between": {"latency": 1e-5, "bandwidth": 1e9}}',
            "for 4 ranks, allowed there is at most 3",
        ),
        ("not JSON", r"cluster\.platform: got "),
    ],
    ids=["negative bandwidth", "unknown device", "too few nodes", "no JSON"],
)
def test_a_platform_file_that_will_not_do_is_refused_in_one_sentence_before_anything_starts(
    tmp_path, text, sentence
):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(BadExperiment, match=sentence) as said:
        dlpar.launch(
            Experiment(workers=4, cluster={"world": "simulated", "platform": str(tmp_path / "p.json")})
        )
    assert "\n" not in str(said.value)


def test_a_platform_file_that_is_not_there_is_refused():
    with pytest.raises(BadExperiment, match=r"cluster\.platform: got .*nowhere\.json"):
        dlpar.spmd(lambda comm: None, workers=2, world="simulated", platform="nowhere.json")
