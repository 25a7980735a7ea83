"""Simulated parameter servers: seconds as their closed forms say, and weights as old as theory has it."""

from __future__ import annotations

import pytest
from simulations import cluster, run, trained
from trained_ranks import images_a_second

from dlpar import Experiment
from dlpar.comm import Recorder
from dlpar.comm.ghost import Outline
from dlpar.replica import Replica
from dlpar.sync import scheme
from dlpar.theory import Link, Servers, predict
from dlpar.train import serve
from dlpar.worlds.platforms import Device, Workload

LINK, EXACT = Link(1e-5, 1e9), 1e-3
NODES = cluster(600, LINK)
PARAMETERS = 720_720  # by 1 to 16 without a rest
SIZES = {"world": "simulated", "messages": "sizes"}


def rounds(platform=NODES, nodes=None, **fields) -> tuple[list[float], float, float]:
    """Seconds of rounds that all workers begin at once, and the bytes of a gradient and of the weights in answer."""
    experiment = Experiment(steps=3, scaling="weak", cluster=SIZES, **fields)
    workers, servers = experiment.workers, experiment.sync.servers
    whole = Workload(name="whole", parameters=PARAMETERS - PARAMETERS % servers, flops=1.0)

    def program(comm):
        group, times = comm.split(comm.rank >= workers), []
        if comm.rank >= workers:
            return serve(comm, experiment, Recorder())
        replica = Replica(Outline.of(whole), comm)
        sync = scheme(experiment, comm, replica)
        for _ in sync.steps():
            group.barrier()
            began = comm.now()
            sync.combine()
            times.append(comm.now() - began)
            sync.update()
        return times

    told = run(program, nodes or experiment.ranks, platform, computes=False)[:workers]
    # In the last round nobody is held back for another.
    return [max(each) for each in zip(*told)][:-1], whole.nbytes, whole.nbytes + 40 * servers


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3, 5, 8, 13, 16, 33, 64])
def test_a_bsp_round_takes_what_its_closed_form_says_with_any_number_of_servers_up_to_that_of_workers(
    workers,
):
    for servers in {1, 2, 3, 4, 7, 8, 16, 31, workers} & set(range(1, min(workers, 32) + 1)):
        times, gradient, weights = rounds(workers=workers, sync={"scheme": "ps", "servers": servers})
        said = Servers(workers, servers, gradient, LINK, answer=weights).round_seconds()
        assert times == [pytest.approx(said, rel=EXACT)] * 2, servers


def test_servers_on_the_nodes_of_workers_spare_a_shard_each():
    shared = cluster(600, LINK, devices=2, inside=Link(0.0, 1e15))
    for workers, servers in [(2, 1), (4, 2), (8, 8), (9, 3), (16, 4)]:
        nodes = [*range(workers), *range(servers)]
        times, gradient, weights = rounds(
            shared, nodes, workers=workers, sync={"scheme": "ps", "servers": servers}
        )
        said = Servers(workers, servers, gradient, LINK, answer=weights).round_seconds(colocated=True)
        assert times == [pytest.approx(said, rel=EXACT)] * 2, (workers, servers)


@pytest.mark.parametrize("workers", [2, 5, 16, 64])
def test_steps_that_follow_each_other_take_what_is_predicted_of_one_server(tmp_path, workers):
    (tmp_path / "whole.json").write_text(
        Workload(name="whole", parameters=PARAMETERS, flops=3e6).model_dump_json()
    )
    run = trained(
        tmp_path / "run",
        NODES,
        workers=workers,
        steps=8,
        scaling="weak",
        batch=4,
        sync={"scheme": "ps"},
        cluster={"messages": "sizes", "stand_in_for": str(tmp_path / "whole.json")},
    )
    # The last worker to be answered in each step; in the last step nobody is held back for another.
    took = run.steps.groupby("step")["t"].max().diff()[2:-1]
    assert took.tolist() == [pytest.approx(predict(run.experiment).seconds, rel=EXACT)] * len(took)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [4, 16, 64, 256])
def test_gradients_of_equal_workers_are_n_minus_1_updates_old_under_asp(tmp_path, workers):
    steps = max(25, 400 // workers)
    slow = cluster(257, LINK, device=Device(name="slow", flops=1e9))
    done = trained(
        tmp_path / "run",
        slow,
        workers=workers,
        steps=steps,
        scaling="weak",
        batch=2,
        model={"name": "logistic"},
        sync={"scheme": "ps", "consistency": "asp"},
        cluster={"messages": "sizes"},
    ).steps
    assert len(done) == workers * steps
    settled = done[done["step"] >= 3]  # until then some have not pushed once
    assert settled["staleness"].mean() == pytest.approx(workers - 1, rel=0.02)


def test_a_bounded_worker_never_leads_by_more_than_its_bound(tmp_path):
    done = trained(
        tmp_path / "run",
        cluster(600, LINK, device=Device(name="slow", flops=1e9), stragglers={3: 5.0}),
        workers=16,
        steps=40,
        scaling="weak",
        batch=2,
        sync={"scheme": "ps", "consistency": "ssp", "staleness": 2},
        cluster={"messages": "sizes"},
    ).steps
    assert done["lead"].max() == 2


def test_leaf_servers_on_the_nodes_of_their_groups_beat_servers_on_nodes_of_their_own():
    """ResNet-50 on 16 P100, four to a node: of a node's four gradients one passes its port."""
    cluster = {"platform": "p100-25gbe", "stand_in_for": "resnet50"}
    dedicated = images_a_second(workers=16, sync={"scheme": "ps", "servers": 4}, cluster=cluster)
    leaves = {"scheme": "ps", "servers": 4, "groups": 4}
    two_levels = images_a_second(workers=16, sync=leaves, cluster={**cluster, "placement": "colocated"})
    assert two_levels > 1.5 * dedicated
