"""Snapshots: a run that is resumed goes on as if it had never stopped, and nothing that is torn is used."""

import json
import os
import random
import shutil
import signal
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest
import torch
from conftest import eventually

import dlpar
from dlpar import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs import snapshot
from dlpar.jobs.diagnosis import pids_of
from dlpar.jobs.launch import Job, JobFailed
from dlpar.jobs.rank import simulate
from dlpar.jobs.run import Run
from dlpar.jobs.scratch import is_locked
from dlpar.jobs.snapshot import Attempt, State, begin, newest, put, remove_sets, shard, taken, written
from dlpar.jobs.tail import attempts_in
from dlpar.split import mesh
from dlpar.split.mesh import groups
from dlpar.sync.membership import resized
from dlpar.sync.optim import Optimizer
from dlpar.worlds.mpiexec import NoMPI

STEPS, DIES = 24, 0.8
SMALL = {"name": "mlp", "width": 16, "depth": 3}
CNN = {"name": "cnn", "width": 32, "depth": 2}
TEXT = {"model": {"name": "transformer", "width": 16, "depth": 2, "heads": 4}, "data": "docstrings"}


def trained(**changes):
    """An experiment whose last rank dies after four fifths of its steps, with a snapshot every third of them."""
    usual = {
        "model": SMALL, "workers": 4, "steps": STEPS, "batch": 64, "optimizer": "momentum", "lr": 0.05,
        "evaluate_every": 6, "snapshot": {"every": 8, "keep": 9}, "cluster": {"world": "simulated"},
    }  # fmt: skip
    return dlpar.Experiment(**{**usual, **changes})


def simulated(folder, experiment):
    """The run of an experiment, simulated in this process; a death is an exit status."""
    if not folder.exists():
        folder.mkdir()
        (folder / "experiment.json").write_text(experiment.to_json())
    status = simulate(folder, experiment, attempt=Attempt.of(folder))
    return status, Run(folder)


def states(run, step=STEPS):
    """Every tensor in the shards of a snapshot, without copies of a centre, of no use after the last step.

    Nobody waits for the slowest in the last step, so these copies differ from run to run.
    """
    paths = sorted(shard(run.path, step, 0).parent.glob("*.safetensors"))
    found = {(path.name, name): t for path in paths for name, t in State.read(path).tensors.items()}
    return {key: t for key, t in found.items() if not key[1].endswith("agreed")}


def same_states(run, other, step=STEPS):
    """Whether two runs have the same tensors in a snapshot, with the same numbers."""
    ends = [states(each, step) for each in (run, other)]
    assert ends[0]
    return ends[0].keys() == ends[1].keys() and all(map(torch.equal, *(end.values() for end in ends)))


def pipeline(schedule, stages=2, **more):
    cut = {"kind": "pipeline", "stages": stages, "schedule": schedule}
    return {"split": cut | {"microbatches": 1 if schedule == "pipedream" else 4}, **more}


PS = {"scheme": "ps"}
LOCAL = {"method": "local", "period": 4}

SYNCHRONOUS = {
    "ring": {},
    "adam": {"optimizer": "adam"},
    "adagrad, overlap": {"optimizer": "adagrad", "sync": {"overlap": True, "bucket_mb": 0.002}},
    "auto": {"sync": {"allreduce": "auto"}},
    "ZeRO 1": {"split": {"zero": 1}},
    "ZeRO 3": {"split": {"zero": 3}},
    "1-bit": {"compression": "onebit"},
    "top-k, map-reduce": {"compression": {"codec": "topk", "keep": 0.1}, "sync": "mapreduce"},
    "map-reduce, sampled": {"sync": {"scheme": "mapreduce", "fraction": 0.6}},
    "ps": {"sync": PS | {"servers": 2}},
    "ps, overlap": {"sync": PS | {"servers": 2, "overlap": True, "bucket_mb": 0.002}},
    "ps, leaves": {"sync": PS | {"groups": 2}},
    "ps, models of groups": {"sync": PS | {"groups": 2, "group_period": 4}},
    "ps, push every 4": {"sync": PS | {"push_every": 4}},
    "ps, 1-bit, pull": {"sync": PS | {"pull": "separate"}, "compression": "onebit"},
    "gossip": {"sync": "gossip"},
    "D-PSGD": {"sync": {"scheme": "gossip", "order": "combine_then_adapt"}},
    "random peers": {"sync": {"scheme": "gossip", "exchange": "random"}},
    "one peer": {"sync": {"scheme": "gossip", "exchange": "one_peer"}},
    "push-sum": {"sync": {"scheme": "gossip", "exchange": "push_sum", "topology": "exp2"}},
    "local": {"averaging": LOCAL},
    "local, gossip": {"averaging": LOCAL, "sync": "gossip"},
    "elastic": {"averaging": {"method": "elastic", "period": 4}, "sync": PS},
    "block momentum": {"averaging": {"method": "block_momentum", "period": 4}},
    "batch norm": {"model": SMALL | {"norm": "batch"}},
    "batch norm, ZeRO 3": {"model": SMALL | {"norm": "batch"}, "split": {"zero": 3}},
    "tensor": {"split": {"kind": "tensor", "tensor": 2}},
    "tensor, ps": {"split": {"kind": "tensor", "tensor": 4}, "sync": PS | {"servers": 4}},
    "tensor, transformer": {**TEXT, "split": {"kind": "tensor", "tensor": 2}},
    "spatial": {"model": CNN, "split": {"kind": "spatial", "rows": 2, "columns": 2}},
    "gpipe": pipeline("gpipe"),
    "1f1b": pipeline("1f1b"),
    "interleaved": pipeline("interleaved"),
    "zb-h1": pipeline("zb-h1"),
    "pipedream": pipeline("pipedream", stages=4, model=SMALL | {"depth": 5}),
    "pipedream, ps": pipeline("pipedream", sync=PS | {"servers": 2}),
    "hybrid": {"workers": 8, "split": {"kind": "hybrid", "stages": 2, "tensor": 2}},
    "stacking": {"split": {"kind": "stacking", "blocks": 2}},
}


@pytest.mark.slow
@pytest.mark.parametrize("changes", SYNCHRONOUS.values(), ids=SYNCHRONOUS)
def test_a_resumed_run_has_losses_and_weights_of_one_never_interrupted(changes, tmp_path):
    experiment = trained(**changes)
    _, whole = simulated(tmp_path / "whole", experiment)
    dying = experiment.replace(deaths={"die": {experiment.workers - 1: DIES}})
    status, cut = simulated(tmp_path / "cut", dying)
    assert status == 1 and "died on request" in next(iter(cut.errors.values()))["message"]
    begin(cut.path, newest(cut.path, dying))
    status, resumed = simulated(tmp_path / "cut", dying)
    assert status == 0
    assert resumed.curve["loss"].tolist() == whole.curve["loss"].tolist()
    assert same_states(resumed, whole)
    tests = ["step", "accuracy", "loss"]
    again = resumed.evals.drop_duplicates("step", keep="last")
    assert again[tests].to_numpy().tolist() == whole.evals[tests].to_numpy().tolist()
    first, second = resumed.attempts.to_dict("records")
    assert first["lost"] == first["last"] + 1 - second["first"] and second["last"] == STEPS - 1
    assert resumed.curve["seconds"].is_monotonic_increasing
    assert resumed.curve["samples"].tolist() == whole.curve["samples"].tolist()


FREE = {
    "asp": {"sync": PS | {"consistency": "asp"}},
    "ssp": {"sync": PS | {"consistency": "ssp", "servers": 2, "staleness": 2}},
    "softsync": {"sync": PS | {"consistency": "softsync", "softsync": 2}},
    "leaves, asp": {"sync": PS | {"groups": 2, "group_consistency": "asp"}},
    "Downpour": {"sync": PS | {"consistency": "asp", "push_every": 2, "fetch_every": 4}},
    "backup worker": {"sync": PS | {"backup": 1}, "batch": 63},
    "AD-PSGD": {"sync": {"scheme": "gossip", "exchange": "pairwise"}},
    "Hogwild": {"sync": "hogwild", "optimizer": "sgd"},
}


@pytest.mark.slow
@pytest.mark.parametrize("changes", FREE.values(), ids=FREE)
def test_workers_that_run_free_go_on_with_the_version_and_the_steps_they_had(changes, tmp_path):
    experiment = trained(deaths={"die": {3: DIES}}, **changes)
    simulated(tmp_path / "cut", experiment)
    before = {name: (tmp_path / "cut" / name).read_bytes() for name in attempts_in(tmp_path / "cut")[-1]}
    begin(tmp_path / "cut", newest(tmp_path / "cut", experiment))
    status, run = simulated(tmp_path / "cut", experiment)
    assert status == 0 and run.summary["steps"] == STEPS
    assert run.curve["step"].tolist() == list(range(STEPS))
    earlier = {name: (run.path / name).read_bytes() for name in attempts_in(run.path)[0]}
    assert list(earlier.values()) == list(before.values())  # nothing recorded is lost
    if "version" in run.records()[-1][1]:
        versions = [r["version"] for _, r in run.records() if r["k"] == "step"]
        assert versions[-1] >= run.attempts["first"].iloc[-1]


def test_kept_attributes_are_put_back_in_place_and_new_ones_are_made():
    class Inner:
        kept = ("numbers", "table")

        def __init__(self):
            self.numbers, self.table = torch.arange(3.0), {}

    class Outer:
        kept = ("inner", "count", "parts", "nothing")

        def __init__(self):
            self.inner, self.count, self.parts, self.nothing = Inner(), 0, [Inner(), Inner()], None

    one, other, tensors = Outer(), Outer(), {}
    one.count, one.nothing = 7, torch.ones(2)
    one.inner.table = {(1, 2): torch.zeros(1), 3: "word"}
    one.parts[1].numbers.mul_(2)
    tree = json.loads(json.dumps(taken(one, "one", tensors)))
    address = other.parts[1].numbers.data_ptr()
    put(tree, other, tensors, torch.device("cpu"))
    assert other.count == 7 and other.inner.table[1, 2].tolist() == [0.0] and other.inner.table[3] == "word"
    assert other.parts[1].numbers.tolist() == [0, 2, 4] and other.parts[1].numbers.data_ptr() == address
    assert other.nothing.tolist() == [1, 1]


@pytest.mark.parametrize("rule", ["momentum", "adagrad", "adam"])
@pytest.mark.parametrize("weights, rank", [("meta", "meta"), ("cpu", "meta")], ids=["worker", "server"])
def test_what_an_optimizer_had_not_yet_made_is_put_where_its_weights_are(rule, weights, rank):
    before, tensors = Optimizer(rule, torch.zeros(3), 0.1), {}
    before.step(torch.ones(3))
    after = Optimizer(rule, torch.zeros(3, device=weights), 0.1)
    put(json.loads(json.dumps(taken(before, "it", tensors))), after, tensors, torch.device(rank))
    held = {name: value.device.type for name, value in after.state.items() if isinstance(value, torch.Tensor)}
    # torch counts steps on the host, as it would for a new optimizer.
    assert held == {name: "cpu" if name == "step" else weights for name in held} and held
    after.step(torch.ones(3, device=weights))


def cut_off(tmp_path):
    experiment = trained(deaths={"die": {3: DIES}}, sync="gossip")
    return simulated(tmp_path / "cut", experiment)[1], experiment


def test_a_resume_that_a_bad_setting_refuses_changes_nothing(tmp_path, monkeypatch):
    run, _ = cut_off(tmp_path)
    end = {"k": "end", "status": "failed", "reason": "rank 3 died", "at": 0.0, "rank": 3}
    (run.path / "job.jsonl").write_text(json.dumps(end) + "\n")
    before = {path.name for path in run.path.iterdir()}
    monkeypatch.setenv("DLPAR_WARM_IDLE", "soon")
    with pytest.raises(BadExperiment, match="DLPAR_WARM_IDLE: got 'soon', allowed is a number of seconds"):
        dlpar.resume(run)
    assert (run.status, run.reason) == ("failed", "rank 3 died")
    assert {path.name for path in run.path.iterdir()} - before <= {"lock"}


def test_a_torn_or_changed_snapshot_is_passed_over(tmp_path):
    run, experiment = cut_off(tmp_path)
    assert run.snapshots == [16, 8]
    copy = run.path / "snapshots" / "step-00000016"
    shutil.copytree(copy, copy.with_suffix(".bak"))  # a user's own copy is none of ours
    assert run.snapshots == [16, 8]
    remove_sets(run.path, lambda step, is_complete: not is_complete)
    assert copy.with_suffix(".bak").exists() and copy.exists()
    path = shard(run.path, 16, 2)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert newest(run.path, experiment).step == 8
    path.write_bytes(whole[:-3] + bytes(3))
    assert newest(run.path, experiment).step == 8
    path.write_bytes(whole)
    assert newest(run.path, experiment).step == 16
    for step in run.snapshots:
        shard(run.path, step, 0).unlink()
    with pytest.raises(BadExperiment, match=r"^run: got cut, allowed is .*after step 8 is refused: rank-0"):
        newest(run.path, experiment)


def test_an_attempt_mixes_no_shards_of_the_one_before_it(tmp_path):
    run, experiment = cut_off(tmp_path)
    torn, alone = shard(run.path, 16, 1), shard(run.path, 24, 0)
    alone.parent.mkdir()
    alone.write_bytes(torn.read_bytes())
    torn.write_bytes(b"torn")
    begin(run.path, newest(run.path, experiment))
    assert run.snapshots == [8] and [path.name for path in (run.path / "snapshots").iterdir()] == [
        "step-00000008"
    ]


def test_who_writes_shards_is_found_once_and_only_if_there_are_snapshots(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(mesh, "groups", lambda *given: asked.append(given) or groups(*given))
    for every, calls in ((0, 0), (8, 4)):
        experiment = trained(snapshot={"every": every, "keep": 9}, steps=8)
        assert simulated(tmp_path / str(every), experiment)[0] == 0 and len(asked) == calls


def test_no_other_process_gets_in_between_the_decision_to_resume_and_the_new_job(monkeypatch, tmp_path):
    run, _ = cut_off(tmp_path)
    held = []

    def looks(call):
        def called(*arguments):
            held.append((call.__name__, is_locked(run.path)))
            return call(*arguments)

        return called

    def refuses(job, scratch, experiment):
        held.append(("_spec", is_locked(run.path)))
        raise NoMPI("none here")

    for name in ("newest", "begin"):
        monkeypatch.setattr(snapshot, name, looks(getattr(snapshot, name)))
    monkeypatch.setattr(Job, "_spec", refuses)
    with pytest.raises(NoMPI, match="none here"):
        dlpar.resume(run)
    assert held == [("newest", True), ("begin", True), ("_spec", True)] and not run.live


def test_a_snapshot_of_another_run_is_refused_in_a_sentence(tmp_path):
    run, experiment = cut_off(tmp_path)
    with pytest.raises(
        BadExperiment, match=r"it belongs to mlp on digits by gossip.* but the run is .* by ring"
    ):
        newest(run.path, experiment.replace(sync="ring"))
    pipeline = {"kind": "pipeline", "stages": 2, "microbatches": 4}
    _, run = simulated(tmp_path / "pipeline", trained(split=pipeline, deaths={"die": {3: DIES}}))
    with pytest.raises(
        BadExperiment, match="it has 4 workers, but the run has 2: the number of ranks may change only"
    ):
        newest(run.path, trained(split=pipeline, workers=2))


@pytest.mark.parametrize("split, shards", [({}, 1), ({"kind": "tensor", "tensor": 2}, 2), ({"zero": 1}, 4)])
def test_of_equal_replicas_one_writes(split, shards, tmp_path):
    _, run = simulated(tmp_path / "run", trained(split=split, steps=8))
    names = sorted(path.name for path in (run.path / "snapshots/step-00000008").glob("*.safetensors"))
    assert names == [f"rank-{rank}.safetensors" for rank in range(shards)]


RESIZED = {
    "ring": {"optimizer": "adam", "lr": 0.003},
    "ZeRO 1": {"split": {"zero": 1}, "optimizer": "adam", "lr": 0.003, "sync": {"bucket_mb": 0.002}},
    "ZeRO 3": {"split": {"zero": 3}, "optimizer": "adam", "lr": 0.003},
    "map-reduce": {"sync": "mapreduce"},
    "ps": {"sync": PS | {"servers": 2}},
    "gossip": {"sync": {"scheme": "gossip", "topology": "complete"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [3, 6])
@pytest.mark.parametrize("changes", RESIZED.values(), ids=RESIZED)
def test_more_or_fewer_workers_go_on_with_the_same_global_batches(changes, workers, tmp_path):
    experiment = trained(deaths={"die": {3: DIES}}, batch=60, dtype="float64", **changes)
    _, whole = simulated(tmp_path / "whole", experiment.replace(deaths={"die": {}}))
    _, run = simulated(tmp_path / "cut", experiment)
    begin(run.path, newest(run.path, resized(experiment, workers)))
    status, run = simulated(tmp_path / "cut", experiment)
    assert status == 0 and run.summary["steps"] == STEPS
    assert run.curve["samples"].tolist() == whole.curve["samples"].tolist()
    apart = 0.2 if "gossip" in str(experiment.sync) else 1e-9  # whose replicas average over another graph
    assert np.allclose(run.curve["loss"], whole.curve["loss"], rtol=0, atol=apart)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [3, 4])
@pytest.mark.parametrize("dies", [0.4, 0.8])
def test_only_the_worker_stalls_that_is_told_to_and_only_once(workers, dies, tmp_path):
    delays = {"kind": "constant", "delay_ms": 1.0, "stall": {0: 7.0}}
    experiment = trained(deaths={"die": {3: dies}}, delays=delays, batch=60)
    _, run = simulated(tmp_path / "cut", experiment)
    begin(run.path, newest(run.path, resized(experiment, workers)))
    status, run = simulated(tmp_path / "cut", experiment)
    stalled = [(rank, record["step"]) for rank, record in run._of_kind("step") if record["compute"] > 1]
    assert status == 0 and stalled == [(0, STEPS // 2)]


def test_an_attempt_that_never_began_has_no_number(tmp_path):
    run, experiment = cut_off(tmp_path)
    for number in (1, 1):
        attempt = newest(run.path, experiment)
        assert attempt.number == number
        begin(run.path, attempt)  # and its job was refused
    assert simulated(tmp_path / "cut", experiment)[0] == 0
    assert newest(run.path, experiment).number == 2


def test_nobody_cannot_go_on(tmp_path):
    run, _ = cut_off(tmp_path)
    (run.path / "job.jsonl").write_text('{"k": "end", "status": "failed", "reason": "a death", "at": 0}\n')
    with pytest.raises(dlpar.BadExperiment, match="workers: got 0, allowed is"):
        dlpar.resume(run, workers=0)


@pytest.mark.slow
def test_a_job_that_goes_on_with_more_workers_sums_up_the_whole_run():
    job = dlpar.launch(trained(deaths={"die": {3: DIES}}, batch=60))
    with pytest.raises(JobFailed, match="^rank 3 died on request"):
        job.wait(60)
    job = dlpar.resume(job.run, workers=6)
    earlier = job.run.attempts["last"][0]
    run = job.wait_steps(int(earlier), timeout=60)  # of this attempt
    assert any(record.get("attempt") for _, record in run._of_kind("rank"))
    job.wait(60)
    written = json.loads((run.path / "summary.json").read_text())
    assert written["steps"] == STEPS and written["samples_per_s"] > 0


@pytest.mark.parametrize("sync", [PS | {"consistency": "asp"}, {"scheme": "gossip", "exchange": "pairwise"}])
def test_slow_workers_that_run_free_pass_several_snapshots_at_once_and_complete_them(sync, tmp_path):
    slow = {"kind": "constant", "delay_ms": 1.0, "straggler": {0: 7.0, 1: 11.0}}
    e = trained(workers=4, steps=60, sync=sync, delays=slow, snapshot={"every": 2}, deaths={"die": {2: 0.9}})
    _, run = simulated(tmp_path / "run", e)
    written()
    # The slowest worker makes a step in every six global steps, and its copy is written one step later.
    assert run.snapshots[0] >= 0.9 * 60 - 3 * 6


def test_a_set_without_its_last_shard_is_no_snapshot_and_older_ones_go(tmp_path):
    experiment = trained(snapshot={"every": 4, "keep": 2}, deaths={"die": {3: DIES}})
    _, run = simulated(tmp_path / "cut", experiment)
    assert run.snapshots == [16, 12]
    assert sorted(path.name for path in (run.path / "snapshots").iterdir()) == [
        "step-00000012",
        "step-00000016",
    ]


KILLS = int(os.environ.get("DLPAR_KILLS", "3"))
"""Jobs that :func:`test_a_killed_job_is_resumed_in_its_folder` kills, over all schemes and splits in turns.
Three have each moment and each victim, nine each pair of both."""

LONG = 80


def is_writing(run):
    return list((run.path / "snapshots").glob("step-*/.new-*"))


def lacks_its_manifest(run):
    """Whether all shards of a snapshot are there, and its manifest is not."""
    names = [os.listdir(step) for step in (run.path / "snapshots").glob("step-*")]
    most = max((sum(name.endswith("safetensors") for name in found) for found in names), default=0)
    return any(len(found) >= most and "COMMITTED.json" not in found for found in names)


MOMENTS = {
    "at any time": None,
    "while a shard is written": is_writing,
    "before the manifest": lacks_its_manifest,
}
KILLED = ("failed", r"rank \d( \((server|leaf)\))? was killed by SIGKILL")
VICTIMS = {
    "a rank": KILLED,
    "all ranks": KILLED,
    "the launcher": ("stopped", "the job is running|received SIGTERM, so the job was stopped"),
}
"""Status of the attempt and words of the failure, by victim."""


def wait_for(moment, run):
    """Wait without a pause until a job is at a moment that soon passes."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):  # an old snapshot went meanwhile
            if MOMENTS[moment](run):
                return
    raise AssertionError(f"no moment was {moment}")


def kill(job, moment, victim):
    """Kill a job at a random moment after its first snapshot."""
    eventually(lambda: job.run.snapshots, 60, "there is a snapshot")
    with pytest.raises(BadExperiment, match="which is still running"):
        dlpar.resume(job.run)
    pids = [int(pid) for pid in job.run.ranks["pid"]]
    time.sleep(random.uniform(0.0, 0.2))
    if MOMENTS[moment]:
        wait_for(moment, job.run)
    if victim == "the launcher":
        job._guardian.kill()
    for pid in {"a rank": random.sample(pids, 1), "all ranks": pids}.get(victim, ()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# Not auto: each run measures for itself, and may choose another algorithm, which rounds in another way.
CASES = [(name, changes, True) for name, changes in SYNCHRONOUS.items() if name != "auto"]
CASES += [(name, changes, False) for name, changes in FREE.items()]
CASES = [(*CASES[n % len(CASES)], n) for n in range(KILLS)]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "changes, bsp, number", [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_killed_job_is_resumed_in_its_folder(changes, bsp, number, tmp_path):
    slow = {"kind": "exponential", "delay_ms": 10.0}
    usual = {"cluster": "real", "steps": LONG, "evaluate_every": 24, "snapshot": {"every": 8}, "delays": slow}
    experiment = trained(**{**usual, **changes})
    whole = dlpar.launch(experiment.replace(delays="none")).wait() if bsp else None
    job = dlpar.launch(experiment)
    moment, victim = [*MOMENTS][number % 3], [*VICTIMS][(number + number // 3) % 3]
    ended, words = VICTIMS[victim]
    kill(job, moment, victim)
    with pytest.raises(dlpar.JobFailed, match=words):
        job.wait()
    eventually(lambda: not job.run.live, 20, "the guardian has ended after its launcher")
    newest = job.run.snapshots[0]
    earlier = {path.name: path.read_bytes() for path in job.folder.glob("rank-*.jsonl")}
    run = dlpar.resume(job.run).wait()
    assert run.path == job.folder and run.status == "done"
    assert run.curve["step"].tolist() == list(range(LONG)) and run.attempts["first"].tolist() == [0, newest]
    assert run.attempts["status"].tolist() == [ended, "done"]
    kept = [(run.path / name).read_bytes() for name in attempts_in(run.path)[0] if name.startswith("rank")]
    assert sorted(kept) == sorted(earlier.values())  # nothing recorded is lost
    if whole:
        assert run.curve["loss"].tolist() == whole.curve["loss"].tolist()
        assert same_states(run, whole, LONG)
        assert run.steps[["rank", "step"]].duplicated().sum() == 0
    with pytest.raises(BadExperiment, match="which is done"):
        dlpar.resume(run)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"averaging": {"method": "local", "period": 3}}, "snapshot.every: got 8, allowed with period 3 is a multiple"),
        ({"cluster": {"world": "simulated", "messages": "sizes"}}, "allowed with .* is values: sizes are not a state"),
        ({"deaths": {"die": {4: 0.5}}}, "deaths.die: got rank 4, allowed with 4 ranks is 0 to 3"),
        ({"deaths": "shrink", "split": {"zero": 1}}, "a part of the state would be lost"),
        ({"deaths": "spare", "split": {"kind": "tensor"}}, "a part of the state would be lost"),
        ({"deaths": "shrink", "sync": "hogwild", "optimizer": "sgd", "cluster": "real"}, "sync hogwild is end"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_the_run(changes, said):
    with pytest.raises(BadExperiment, match=said):
        trained(**changes)


def test_a_resumed_run_ends_for_its_own_reason(tmp_path):
    """The first attempt's words in the log explained the second attempt's end."""
    job = dlpar.launch(Experiment(workers=2, steps=4000, evaluate_every=1000, snapshot={"every": 20}))
    job.wait_steps(60)
    job.kill(1)
    with pytest.raises(dlpar.JobFailed, match="^rank 1 was killed by SIGKILL on request"):
        job.wait(60)
    again = dlpar.resume(job.run)
    again.wait_steps(120)
    victim = next(pid for pid, rank in pids_of(job.folder).items() if rank == 0 and psutil.pid_exists(pid))
    os.kill(victim, signal.SIGSEGV)
    with pytest.raises(dlpar.JobFailed, match="^rank 0 was killed by SIGSEGV"):
        again.wait(60)
    assert "SIGKILL" not in job.run.log and (job.folder / "log.0.txt").exists()
