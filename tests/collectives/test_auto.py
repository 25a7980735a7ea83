"""The automatic all-reduce: the one that theory predicts to be quickest, and no simulation has a quicker one."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlpar
from dlpar import Experiment
from dlpar.collectives import ALLREDUCE
from dlpar.collectives.auto import FORMS, Speed, measured, quickest
from dlpar.comm import ANY
from dlpar.theory import collective_seconds, predict
from dlpar.worlds.platforms import PLATFORMS
from dlpar.worlds.simulated.comm import SimulatedComm
from dlpar.worlds.simulated.run import run_program, simulated_world
from tests.simulations import MS, cluster, ends, run, trained

BUCKETS = {"bucket_mb": 0.05, "allreduce": "auto"}

CROWDED = cluster(devices=4, nodes=16, inside={"latency": 0.1 * MS, "bandwidth": 1e8})
"""Nodes of four ranks that share a port."""


def speed_of(link, crowd=1):
    return Speed(link.latency, 1 / link.bandwidth, crowd / link.bandwidth, link.overhead)


@given(ranks=st.integers(1, 4096), nbytes=st.integers(1, 10**9), platform=st.sampled_from(sorted(PLATFORMS)))
def test_the_choice_is_the_least_of_the_closed_forms(ranks, nbytes, platform):
    link = PLATFORMS[platform].link(same_node=False)
    seconds = {name: collective_seconds(name, ranks, nbytes, link) for name in FORMS}
    chosen = quickest(ranks, nbytes, speed_of(link))
    assert seconds[chosen] <= min(seconds.values()) * (1 + 1e-9)


def test_each_of_them_is_chosen_somewhere():
    link = cluster().between
    chosen = {quickest(n, 4**k, speed_of(link)) for n in range(2, 130) for k in range(14)}
    assert chosen == set(FORMS)
    # A ring sends one message at a time over a port that four ranks share.
    assert quickest(64, 10**7, speed_of(link)) == "halving_doubling"
    assert quickest(64, 10**7, speed_of(link, crowd=4)) == "ring"


@pytest.mark.parametrize("ranks", [2, 3, 4, 9])
def test_ranks_measure_the_link_of_their_platform_and_agree_on_it(ranks):
    first, *others = run(lambda comm: measured(comm, 1000), ranks)
    assert tuple(first) == pytest.approx((*speed_of(cluster().between),), rel=1e-9)
    assert all(other == first for other in others)


def test_ranks_that_share_a_port_measure_that_they_share_it():
    nodes = [rank // 4 for rank in range(16)]
    found = run(lambda comm: measured(comm, 100_000), nodes, CROWDED)[0]
    assert tuple(found) == pytest.approx((*speed_of(CROWDED.between, crowd=4),), rel=0.01)


@pytest.mark.parametrize("elements", [1, 250, 10_000, 1_000_000])
@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 16, 24, 64])
@pytest.mark.parametrize("per_node", [1, 4])
def test_no_other_all_reduce_is_quicker_in_a_simulation(elements, ranks, per_node):
    nodes = [rank // per_node for rank in range(ranks)]
    platform = cluster() if per_node == 1 else CROWDED
    took = {
        name: max(ends(lambda comm: ALLREDUCE[name](comm, comm.empty(elements)), nodes, platform))
        for name in FORMS
    }
    speed = run(lambda comm: measured(comm, max(2, elements // ranks)), nodes, platform)[0]
    chosen = quickest(ranks, 4 * elements, speed)
    # The forms are exact at powers of two, and bounds elsewhere. Where ranks share a port some messages need none.
    allowed = 2 if per_node > 1 else 1.1 if ranks & (ranks - 1) else 1 + 1e-9
    assert took[chosen] <= min(took.values()) * allowed, (chosen, took)


@pytest.mark.slow
def test_on_nodes_that_share_a_port_it_is_a_ring_and_to_measure_takes_less_than_an_all_reduce():
    def trained(name):
        sync = {"allreduce": name, "bucket_mb": 4096}
        cluster = {"world": "simulated", "platform": "p100-25gbe-roce", "stand_in_for": "resnet50"}
        fields = dict(workers=16, batch=16, scaling="weak", steps=3, evaluate_every=1000)
        run = dlpar.launch(
            Experiment(model={"width": 64, "depth": 1}, sync=sync, cluster=cluster, **fields)
        ).wait(60)
        return run.curve["seconds"].to_numpy(), run.spans.query("name == 'communicate'")

    (auto, _), (ring, sent) = trained("auto"), trained("ring")
    assert np.diff(auto) == pytest.approx(np.diff(ring))
    assert 0 < auto[0] - ring[0] < (sent["end"] - sent["start"]).min()


@pytest.mark.slow
def test_the_choice_is_recorded_when_models_are_averaged_too(tmp_path):
    averaging = {"method": "local", "period": 2}
    run = trained(tmp_path / "run", workers=2, steps=4, sync={"allreduce": "auto"}, averaging=averaging)
    assert run.summary["chosen"]["allreduce"][0] in FORMS


@pytest.mark.slow
@pytest.mark.parametrize("world", ["real", "paced", "simulated"])
def test_buckets_of_several_sizes_give_the_losses_of_one_process(world):
    alone = dlpar.launch(Experiment(workers=1, steps=6, dtype="float64")).wait(60).curve["loss"]
    run = dlpar.launch(
        Experiment(workers=5, steps=6, dtype="float64", sync=BUCKETS, cluster={"world": world})
    ).wait(60)
    np.testing.assert_allclose(run.curve["loss"], alone, rtol=1e-9)
    chosen = run.events.query("name == 'chosen'")["allreduce"]
    assert re.search(r"\[rank 0\] allreduce auto: \w+ for \d+ of \d+.* buckets", run.log)
    assert (
        len(chosen) == 5
        and set(chosen.iloc[0]) <= set(FORMS)
        and all(each == chosen.iloc[0] for each in chosen)
    )


@pytest.mark.slow
@pytest.mark.parametrize("width", [2, 64, 1024])
def test_in_a_simulation_it_is_as_quick_as_the_quickest_and_predicted(width):
    def seconds(name):
        cluster = {"world": "simulated", "platform": "cpu-10gbe", "messages": "sizes"}
        model = {"name": "mlp", "width": width, "depth": 1}
        sync = {"allreduce": name, "bucket_mb": 4096}
        experiment = Experiment(model=model, workers=16, steps=4, sync=sync, cluster=cluster)
        run = dlpar.launch(experiment).wait(60)
        return run.curve["seconds"].diff().median(), run.steps["bytes"].sum(), predict(experiment)

    found = {name: seconds(name) for name in (*FORMS, "auto")}
    best = min(FORMS, key=lambda name: found[name][0])
    assert found["auto"][0] == pytest.approx(found[best][0]) and found["auto"][1] == found[best][1]
    assert found["auto"][2] == found[best][2]


class InOrder(SimulatedComm):
    """A carrier that, like NCCL, begins a message only when the one before it has ended."""

    before = None

    def isend(self, tensor, dest, tag=0):
        self.before = super().isend(tensor, dest, tag)
        return self.before

    def recv(self, into, source=ANY, tag=ANY):
        if self.before is not None:
            self.before.wait()
        return super().recv(into, source, tag)


def test_a_speed_is_measured_on_a_carrier_that_sends_one_message_after_the_other():
    simulator, comms = simulated_world([0, 1, 2, 3], PLATFORMS["p100-25gbe-roce"], False, kind=InOrder)
    for speed in run_program(simulator, comms, lambda comm: measured(comm, 1_000_000), patience=20):
        assert speed.byte == pytest.approx(1 / 2.8e9, rel=0.01)


@pytest.mark.slow
def test_a_resumed_run_keeps_its_choice_and_names_no_other():
    sync = {"scheme": "ring", **BUCKETS}
    fields = dict(workers=2, steps=40, sync=sync, snapshot={"every": 10}, deaths={"die": {1: 0.5}})
    job = dlpar.launch(Experiment(**fields, evaluate_every=1000))
    with pytest.raises(dlpar.JobFailed, match="^rank 1 was killed by SIGKILL on request"):
        job.wait(60)
    first = job.run.summary["chosen"]
    run = dlpar.resume(job.run).wait(60)
    named = [r for _, r in run.records() if r["k"] == "event" and r["name"] == "chosen"]
    assert run.summary["chosen"] == first and len(named) == 2  # one of each rank
