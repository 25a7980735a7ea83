"""Clusters on paper: their figures, the files that describe them, and who lives where."""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import fmean, pstdev

import pytest

from dlpar import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.worlds.platforms import (
    DEVICES,
    PLATFORMS,
    Device,
    Link,
    Platform,
    Timing,
    Workload,
    names,
    nodes_of,
    placement,
    platform,
    workload,
)

ETHERNET = Link(latency=50e-6, bandwidth=100e6)


def small(**changes) -> Platform:
    """Two nodes of two devices, with something else about them."""
    fields = dict(name="small", device="p100", devices=2, nodes=2, inside=Link(1e-6, 10e9), between=ETHERNET)
    return Platform(**{**fields, **changes})


# ---- links, devices, times ------------------------------------------------------------------


def test_a_message_takes_the_latency_and_its_bytes():
    assert ETHERNET.seconds(1_000_000) == pytest.approx(50e-6 + 10e-3)


@pytest.mark.parametrize(
    "fields, complaint",
    [
        (dict(latency=-1, bandwidth=1), "latency: got -1, allowed is a finite number at least 0"),
        (dict(latency=float("nan"), bandwidth=1), "latency: got nan"),
        (dict(latency="1", bandwidth=1), "latency: got '1'"),
        (dict(latency=0, bandwidth=-5), "bandwidth: got -5, allowed is a finite number above 0"),
        (dict(latency=0, bandwidth=float("nan")), "bandwidth: got nan"),
        (dict(latency=0, bandwidth=True), "bandwidth: got 'True'"),
    ],
)
def test_an_impossible_link_is_refused(fields, complaint):
    with pytest.raises(ValueError, match="^" + complaint):
        Link(**fields)


def test_a_measured_rate_wins_over_the_sustained_flops():
    p100, resnet, bert = DEVICES["p100"], workload("resnet50"), workload("bert-large")
    assert p100.seconds(64 * resnet.flops, resnet) == pytest.approx(64 / 219)
    assert p100.seconds(bert.flops, bert) == pytest.approx(bert.flops / p100.flops)
    assert small().device.seconds(1e12) == pytest.approx(1e12 / p100.flops)
    # Somebody's own network of the same name does as many operations per second, not as many samples.
    own = Workload(name="resnet50", parameters=10, flops=resnet.flops / 4)
    assert p100.seconds(own.flops, own) == pytest.approx(1 / 219 / 4)


@pytest.mark.parametrize("name", [name for name, device in DEVICES.items() if "resnet50" in device.rates])
def test_sustained_flops_are_those_of_resnet_50(name):
    device, resnet = DEVICES[name], workload("resnet50")
    assert device.flops == pytest.approx(device.rates["resnet50"] * resnet.flops, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("cv", [0.1, 0.5, 2.0])
def test_gamma_times_have_mean_one_and_the_coefficient_of_variation_asked_for(cv):
    timing = Timing(kind="gamma", cv=cv)
    factors = [timing.factor(0, rank, number) for rank in range(4) for number in range(2500)]
    assert fmean(factors) == pytest.approx(1, abs=4 * cv / 100)
    assert pstdev(factors) == pytest.approx(cv, rel=0.1)
    assert min(factors) > 0


@pytest.mark.slow
def test_exponential_times_have_mean_and_deviation_one():
    factors = [Timing(kind="exponential").factor(3, 0, number) for number in range(10_000)]
    assert fmean(factors) == pytest.approx(1, abs=0.04) and pstdev(factors) == pytest.approx(1, rel=0.05)


def test_times_follow_from_seed_rank_and_number_alone():
    timing = Timing(kind="gamma")
    here = timing.factor(1, 2, 3)
    assert here == timing.factor(1, 2, 3)
    assert len({here, timing.factor(2, 2, 3), timing.factor(1, 3, 3), timing.factor(1, 2, 4)}) == 4
    assert {Timing().factor(seed, 1, 1) for seed in range(9)} == {1.0}


# ---- platforms ------------------------------------------------------------------------------


def test_every_named_platform_is_joined_and_says_where_its_figures_come_from():
    for name, known in PLATFORMS.items():
        assert known.name == name and known.check(known.ranks) is None
        parts = known.source.split("; ")
        assert len(parts) == 3 - (known.nodes == 1) and min(map(len, parts)) > 20
        assert known.link(True).latency <= known.link(False).latency


@pytest.mark.parametrize("device", ["k80", "p100", "v100", "h100"])
def test_every_generation_of_gpus_comes_with_every_network(device):
    networks = ("1gbe", "10gbe", "25gbe", "25gbe-roce", "100gb-ib")
    speeds = [platform(f"{device}-{network}").between.bandwidth for network in networks]
    line = [gigabits * 1e9 / 8 for gigabits in (1, 10, 25, 25, 100)]
    assert speeds == sorted(speeds)
    assert all(0.5 * label < speed < label for speed, label in zip(speeds, line))


def test_a_platform_holds_so_many_ranks_and_no_more():
    nvlink = platform("h100-nvlink")
    nvlink.check(8)
    with pytest.raises(
        BadExperiment, match="^cluster.platform: got 'h100-nvlink' for 9 ranks, allowed there is"
    ):
        nvlink.check(9)


def test_within_a_node_one_link_carries_and_between_nodes_the_other():
    assert small().link(same_node=True) == Link(1e-6, 10e9) and small().link(same_node=False) == ETHERNET
    lonely = small(devices=1, inside=None)
    assert lonely.link(same_node=True) == ETHERNET  # a server beside its worker


def test_a_single_node_needs_no_network():
    alone = small(nodes=1, between=None)
    assert alone.ranks == 2 and alone.link(same_node=True) == Link(1e-6, 10e9)


@pytest.mark.parametrize(
    "changes, complaint",
    [
        (dict(device="abacus"), "device: got 'abacus', allowed is one of cpu, k80, p100, v100, h100, or"),
        (dict(device=["k80"]), r"device: got \['k80'\]"),
        (dict(device=dict(name="x", flops=-1)), "device.flops: got -1, allowed is a finite number above 0"),
        (
            dict(device=dict(name="x", flops=1, rates={"resnet51": 5})),
            "device.rates: got 'resnet51', allowed is numbers above 0 for some of alexnet, vgg16",
        ),
        (
            dict(device=dict(name="x", flops=1, rates={"vgg16": -5})),
            "device.rates: got -5, allowed is numbers above 0",
        ),
        (
            dict(device=dict(name="x", flops=1, memory_gib=0)),
            "device.memory_gib: got 0, allowed is a finite number",
        ),
        (dict(devices=0), "devices: got 0, allowed is a whole number from 1 to 1024"),
        (dict(devices=True), "devices: got 'True', allowed is a whole number"),
        (dict(nodes=-1), "nodes: got -1, allowed is a whole number from 1"),
        (dict(between=None), "between: got nothing, allowed with 2 nodes is a link"),
        (dict(inside=None), "inside: got nothing, allowed with 2 devices a node is a link"),
        (
            dict(devices=1, nodes=1, inside=None, between=None),
            "inside: got nothing, allowed without between is a link",
        ),
        (
            dict(between=dict(latency=0, bandwidth=-1)),
            "between.bandwidth: got -1, allowed is a finite number above 0",
        ),
        (dict(between=dict(latency=0)), "between.bandwidth: missing; allowed is a finite number above 0"),
        (
            dict(between=dict(latency=0, bandwidth=1, mtu=9000)),
            "between.mtu: got 9000, but there is no such field",
        ),
        (dict(between=25), "between: got 25, allowed is a mapping of latency, bandwidth"),
        (dict(nic="two"), "nic: got 'two', allowed is one of shared, each"),
        (dict(eager=-1), "eager: got -1, allowed is a whole number from 0"),
        (dict(timing="normal"), "timing.kind: got 'normal', allowed is one of constant, gamma, exponential"),
        (dict(timing=dict(kind="gamma", cv=0)), "timing.cv: got 0, allowed is a finite number above 0"),
        (dict(timing=dict(trace=[1])), "timing.trace: got .*, but there is no such field"),
        (dict(stragglers={4: 2.0}), "stragglers: got rank 4, allowed is 0 to 3"),
        (dict(stragglers={1: -2.0}), "stragglers: got -2, allowed is numbers above 0"),
        (dict(bandwidth=3), "bandwidth: got 3, but there is no such field; allowed are name, source, device"),
    ],
)
def test_a_bad_platform_is_one_sentence_that_names_the_field(changes, complaint):
    with pytest.raises(BadExperiment, match="^" + complaint) as refused:
        small(**changes)
    assert "\n" not in str(refused.value)


# ---- files ------------------------------------------------------------------------------------

TOML = """
extends = "p100-25gbe"
nodes = 16
between.latency = 1e-3
timing = {kind = "gamma", cv = 0.3}
stragglers = {2 = 4.0}
"""


def test_a_file_changes_a_few_fields_of_a_named_platform(tmp_path):
    file = tmp_path / "slow.toml"
    file.write_text(TOML)
    slow, base = platform(str(file)), platform("p100-25gbe")
    assert (slow.name, slow.nodes, slow.devices) == ("slow", 16, 4)
    assert slow.between == Link(1e-3, base.between.bandwidth, 2e-6) and slow.inside == base.inside
    assert slow.device == base.device and slow.timing == Timing(kind="gamma", cv=0.3)
    assert slow.stragglers == {2: 4.0}
    assert slow.source == f"{base.source}; changed in {file}"


def test_a_file_describes_a_whole_platform(tmp_path):
    file = tmp_path / "mine.json"
    whole = {
        "name": "hall", "source": "measured on Monday",
        "device": {"name": "T4", "flops": 4e12, "rates": {"resnet50": 150}},
        "devices": 2, "nodes": 20, "nic": "each", "eager": 0,
        "inside": {"latency": 2e-6, "bandwidth": 6e9}, "between": {"latency": 4e-5, "bandwidth": 1e9},
    }  # fmt: skip
    file.write_text(json.dumps(whole))
    hall = platform(str(file))
    assert hall.device == Device(name="T4", flops=4e12, rates={"resnet50": 150})
    assert (hall.name, hall.source, hall.ranks, hall.eager) == ("hall", "measured on Monday", 40, 0)
    assert hall.between == Link(4e-5, 1e9)


def test_a_file_extends_one_beside_it(tmp_path):
    (tmp_path / "slow.toml").write_text(TOML)
    (tmp_path / "slower.json").write_text(
        '{"extends": "slow.toml", "device": "k80", "between": {"bandwidth": 1e6}}'
    )
    slower = platform(str(tmp_path / "slower.json"))
    assert slower.between == Link(1e-3, 1e6, 2e-6) and slower.device == DEVICES["k80"] and slower.nodes == 16


@pytest.mark.parametrize(
    "text, complaint",
    [
        (
            '{"extends": "p100-25gbe", "between": {"bandwidth": -1}}',
            "got 'bad.json', where between.bandwidth: got -1",
        ),
        ('{"extends": "p100-25gbe", "nodes": 0}', "got 'bad.json', where nodes: got 0"),
        ('{"extends": "p101"}', "got 'p101', allowed is one of here, k80-1gbe"),
        ('{"extends": 3}', "got 'bad.json', where extends: got 3, allowed is a name or a path"),
        ('{"extends": "bad.json"}', "got 'bad.json', which extends itself"),
        ('{"extends": "./../here/bad.json"}', "got 'bad.json', which extends itself"),
        ('{"nodes": 3}', "got 'bad.json', where device: got None, allowed is one of cpu"),
        ("[1, 2]", "got '.*bad.json', allowed is a file with a mapping"),
        ("{", "got '.*bad.json', allowed is a file of JSON"),
        ("[" * 100_000, "got '.*bad.json', allowed is a file of JSON"),
        (b"\xff\xfe", r"got '.*bad.json', allowed is a file of JSON \('utf-8' codec can't decode"),
    ],
)
def test_a_bad_file_is_one_sentence(text, complaint, tmp_path):
    file = tmp_path / "here" / "bad.json"
    file.parent.mkdir()
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadExperiment, match="^cluster.platform: " + complaint):
        platform(str(file))


def test_a_file_that_is_not_there_and_a_name_nobody_knows_are_told_apart(tmp_path):
    with pytest.raises(
        BadExperiment, match=r"/none.toml', allowed is a file that can be read \(No such file or directory\)"
    ):
        platform(str(tmp_path / "none.toml"))
    with pytest.raises(
        BadExperiment, match=r"got 'p100', allowed is one of here, k80-1gbe, .* or the path of a .json"
    ):
        platform("p100")


def test_this_machine_is_a_platform_once_it_was_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    assert names()[0] == "here" and set(names()) == {"here", *PLATFORMS}
    with pytest.raises(
        BadExperiment, match="^cluster.platform: got 'here', which is allowed once `dlpar doctor"
    ):
        platform("here")
    found = {"device": "cpu", "inside": {"latency": 1e-6, "bandwidth": 2e9}, "devices": 2}
    (tmp_path / "here.json").write_text(json.dumps(found))
    assert platform("here").inside == Link(1e-6, 2e9)


# ---- who lives where -----------------------------------------------------------------------------


def test_workers_fill_one_node_after_the_other_and_each_server_has_a_node_of_its_own():
    p100 = platform("p100-25gbe")
    assert placement(6, 0, p100) == [0, 0, 0, 0, 1, 1]
    assert placement(6, 3, p100) == [0, 0, 0, 0, 1, 1, 2, 3, 4]


def test_colocated_servers_are_dealt_out_over_the_workers_nodes():
    assert placement(6, 3, platform("p100-25gbe"), colocated=True) == [0, 0, 0, 0, 1, 1, 0, 1, 0]
    assert placement(4, 4, platform("cpu-10gbe"), colocated=True) == [0, 1, 2, 3] * 2


@pytest.mark.parametrize(
    "workers, servers, groups, split",
    [
        (16, 1, 4, {}),
        (16, 3, 4, {}),
        (10, 2, 7, {}),
        (16, 2, 8, {"kind": "tensor", "tensor": 2}),
        (16, 4, 4, {"kind": "hybrid", "order": "tensor,pipeline,data"}),
    ],
)
def test_a_leaf_server_shares_a_node_with_its_group(workers, servers, groups, split):
    from dlpar.split.mesh import part_of
    from dlpar.sync.parameter_server import leaf_of

    cluster = {"world": "simulated", "platform": "p100-25gbe", "placement": "colocated"}
    sync = {"scheme": "ps", "servers": servers, "groups": groups}
    experiment = Experiment(workers=workers, sync=sync, split=split, cluster=cluster)
    nodes, one = nodes_of(experiment), experiment.of_replicas()
    parts = [part_of(experiment, rank) for rank in range(experiment.ranks)]
    for part in sorted(set(parts)):
        ranks = [rank for rank, its in enumerate(parts) if its == part]  # workers, servers, leaves
        members: dict[int, set[int]] = {}
        for worker in range(one.workers):
            members.setdefault(ranks[leaf_of(one, worker)], set()).add(nodes[ranks[worker]])
        assert len(members) == one.sync.groups
        assert all(nodes[leaf] in where for leaf, where in members.items())


def test_on_a_single_node_servers_share_it():
    assert placement(6, 2, platform("v100-nvlink")) == [0] * 8
    with pytest.raises(BadExperiment, match="for 9 ranks, allowed there is at most 8"):
        placement(6, 3, platform("v100-nvlink"))
    assert placement(8, 3, platform("v100-nvlink"), colocated=True) == [0] * 11


def test_servers_that_find_no_node_are_refused():
    with pytest.raises(
        BadExperiment, match="got 'small' for 2 nodes of workers and 1 of servers, allowed there is at"
    ):
        placement(3, 1, small())


# ---- what it costs to know them ---------------------------------------------------------------------


def test_importing_platforms_loads_neither_torch_nor_numpy():
    heavy = (
        "import sys, dlpar.worlds.platforms; "
        "print([name for name in ('torch', 'numpy', 'mpi4py') if name in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, timeout=30).stdout
        == "[]\n"
    )
