"""Controls of all fields: what a page shows of them, and the experiment their values describe."""

import json

import pytest

from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.lab.controls import Controls, settings
from dlpar.worlds.platforms import names

SCHEMES = ["ring", "mapreduce", "gossip", "hogwild",
           {"scheme": "ps", "consistency": "ssp", "staleness": 7, "servers": 2},
           {"scheme": "gossip", "topology": "edges", "edges": [(0, 1), (1, 2), (2, 3)]}]  # fmt: skip


def shown(controls, part):
    hidden = controls.hidden()
    return {
        path.partition(".")[2]
        for path in controls.values
        if path.startswith(f"{part}.") and path not in hidden
    }


def drawn(controls, path):
    return next(field for field in controls.fields() if field["path"] == path)


@pytest.fixture
def controls():
    return Controls(Experiment())


def test_every_field_is_drawn_with_what_it_means_and_travels_as_json(controls):
    fields = {field["path"]: field for field in controls.fields()}
    for path, field, *_ in settings(Experiment()):
        means = fields[path]["means"]
        assert means.startswith(field.description) and "Allowed:" in means, path
        assert fields[path]["label"] and fields[path]["kind"] in ("choice", "flag", "number", "text"), path
    assert set(fields) == set(controls.values)
    json.dumps([list(fields.values()), controls.values], allow_nan=False)
    assert controls.experiment() == Experiment()


def test_what_a_page_sends_as_text_becomes_a_number(controls):
    for path, text in {"workers": " 3 ", "lr": "0.03", "evaluate_every": "7"}.items():
        controls.set(path, text)
    made = controls.experiment()
    assert (made.workers, made.lr, made.evaluate_every) == (3, 0.03, 7)


@pytest.mark.parametrize(
    "path, typed, got",
    [("workers", " 0", "0"), ("lr", "-1.5", "-1.5"), ("workers", "2.5", "2.5"), ("steps", "ten", "'ten'")],
)
def test_a_number_that_was_typed_is_refused_as_a_number(controls, path, typed, got):
    controls.set(path, typed)
    with pytest.raises(BadExperiment, match=f"{path}: got {got}, allowed"):
        controls.experiment()


def test_fields_of_the_first_screen_come_first_in_their_order():
    fields = Controls(Experiment(), ("world", "steps", "model.width")).fields()
    assert [f["path"] for f in fields[:3]] == ["cluster.world", "steps", "model.width"]
    assert [f["first"] for f in fields[:4]] == [True, True, True, False]
    for name in ("worker", "wrld"):
        with pytest.raises(ValueError, match=f"controls: got '{name}', allowed are .*workers"):
            Controls(Experiment(), (name,))


def test_controls_give_back_any_experiment():
    odd = Experiment(
        workers=3,
        model={"width": 64},
        cluster={"threads": 2},
        evaluate_every=7,
        sync={"overlap": True},
        lr=0.03,
    )
    assert Controls(odd).experiment() == odd
    other = Controls(Experiment())
    other.show(odd)
    assert other.experiment() == odd


# ---- kinds of a part -------------------------------------------------------------------


def test_only_fields_of_the_chosen_scheme_are_shown(controls):
    assert shown(controls, "sync") == {"scheme", "allreduce", "overlap", "bucket_mb", "factors"}
    controls.set("sync.scheme", "ps")
    assert {"servers", "consistency", "pull"} <= shown(controls, "sync")
    assert "allreduce" not in shown(controls, "sync")


def test_fields_that_mean_nothing_beside_others_are_hidden(controls):
    controls.set("sync.scheme", "ps")
    assert "staleness" not in shown(controls, "sync")
    controls.set("sync.consistency", "ssp")
    assert "staleness" in shown(controls, "sync") and "softsync" not in shown(controls, "sync")
    assert shown(controls, "delays") == {"kind", "straggler", "stall"}
    controls.set("delays.kind", "gamma")
    assert {"delay_ms", "delay_cv"} <= shown(controls, "delays")
    assert {"width", "depth"} <= shown(controls, "model")
    controls.set("model.name", "logistic")
    assert shown(controls, "model") == {"name"}


def test_what_was_set_for_another_scheme_is_remembered(controls):
    controls.set("sync.scheme", "ps")
    controls.set("sync.servers", "2")
    controls.set("sync.scheme", "gossip")
    assert controls.experiment().sync.scheme == "gossip"
    controls.set("sync.scheme", "ps")
    assert controls.experiment() == Experiment(sync={"scheme": "ps", "servers": 2})


@pytest.mark.parametrize("sync", SCHEMES, ids=str)
def test_controls_give_back_an_experiment_of_any_scheme(sync):
    made = Experiment(workers=4, sync=sync, delays={"straggler": {1: 4.0}, "stall": {2: 1.5}})
    assert Controls(made).experiment() == made


def test_only_settings_of_the_chosen_split_are_shown_and_each_has_its_own_default(controls):
    assert shown(controls, "split") == {"kind", "microbatches", "zero"}
    controls.set("split.kind", "tensor")
    assert shown(controls, "split") == {"kind", "order", "tensor", "redundancy", "async_allreduce"}
    tensor = drawn(controls, "split.tensor")
    assert (tensor["label"], controls.values["split.tensor"]) == ("tensor (0: all)", 0)
    assert drawn(controls, "snapshot.every")["label"] == "snapshot every (0: none)"
    controls.set("split.kind", "spatial")
    assert shown(controls, "split") == {"kind", "order", "rows", "columns", "tiled"}
    controls.set("split.kind", "hybrid")
    cut = {"kind", "order", "tensor", "stages", "schedule", "microbatches", "partition", "recompute"}
    assert shown(controls, "split") == cut
    assert (controls.values["split.tensor"], controls.values["split.stages"]) == (2, 2)
    tensor = drawn(controls, "split.tensor")
    assert tensor["label"] == "tensor" and "from 1 to 64" in tensor["means"]
    controls.set("split.kind", "pipeline")
    assert (controls.values["split.stages"], controls.values["split.microbatches"]) == (0, 8)
    controls.set("split.schedule", "interleaved")
    assert "chunks" in shown(controls, "split")


def test_what_was_set_for_another_split_is_remembered_although_a_default_differs(controls):
    controls.set("split.kind", "tensor")
    controls.set("split.tensor", "4")
    controls.set("split.kind", "data")
    controls.set("split.kind", "hybrid")
    assert controls.values["split.tensor"] == 2
    controls.set("split.kind", "tensor")
    assert controls.values["split.tensor"] == "4"


def test_a_share_of_neurons_set_for_an_mlp_does_not_stand_in_the_way_of_a_cnn(controls):
    controls.set("split.kind", "tensor")
    controls.set("split.redundancy", "0.5")
    controls.set("model.name", "cnn")
    assert "redundancy" not in shown(controls, "split") and controls.experiment().split.redundancy == 0


@pytest.mark.parametrize(
    "split",
    [
        "data",
        {"kind": "tensor", "tensor": 2, "redundancy": 0.25},
        {"kind": "pipeline", "stages": 2, "partition": "2,1"},
        {"kind": "hybrid", "microbatches": 4},
        {"kind": "spatial", "rows": 2, "columns": 2},
    ],
    ids=str,
)
def test_controls_give_back_an_experiment_of_any_split(split):
    model = {"name": "cnn" if "rows" in split else "mlp"}
    made = Experiment(workers=4, split=split, model=model)
    assert Controls(made).experiment() == made
    other = Controls(Experiment())
    other.show(made)
    assert other.experiment() == made


# ---- texts -----------------------------------------------------------------------------


def test_mappings_and_edges_are_typed_as_text(controls):
    controls.set("delays.straggler", "1=4.0, 2=1.5")
    controls.set("sync.scheme", "gossip")
    controls.set("sync.topology", "edges")
    controls.set("sync.edges", "0-1,1-2,2-3")
    made = controls.experiment()
    assert made.delays.straggler == {1: 4.0, 2: 1.5} and made.sync.edges == ((0, 1), (1, 2), (2, 3))
    controls.set("sync.topology", "ring")  # its edges stay typed, and mean nothing now
    assert controls.experiment().sync.edges == ()
    assert "rank 1, four times" in drawn(controls, "delays.straggler")["placeholder"]


def test_a_bad_mapping_is_explained(controls):
    controls.set("delays.straggler", "one=4")
    with pytest.raises(
        BadExperiment, match="delays.straggler: got 'one=4', allowed is numbers from 1 to 1000"
    ):
        controls.experiment()


def test_a_scheme_typed_in_a_cell_stays_a_choice_only_where_it_was_one(controls):
    def mine(comm, tensor):
        return None

    def schemes(of):
        return [value for _, value in drawn(of, "sync.scheme")["choices"]]

    assert "own" not in schemes(controls)
    own = Experiment(sync=mine)
    with_own = Controls(own)
    assert with_own.experiment() == own and "own" in schemes(with_own)
    with_own.set("sync.scheme", "ring")
    assert with_own.experiment().sync.scheme == "ring"
    with_own.set("sync.scheme", "own")
    assert with_own.experiment() == own and "sync.code" not in with_own.values


# ---- worlds ------------------------------------------------------------------------------


def test_only_what_applies_in_a_world_is_shown(controls):
    real = shown(controls, "cluster")
    assert {"device", "carrier"} <= real and not {"platform", "stand_in_for", "messages"} & real
    controls.set("cluster.world", "paced")
    paced = shown(controls, "cluster")
    assert {"platform", "stand_in_for", "placement"} <= paced
    assert not {"messages", "device", "carrier"} & paced
    controls.set("cluster.world", "simulated")
    simulated = shown(controls, "cluster")
    assert {"platform", "stand_in_for", "messages"} <= simulated and "threads" not in simulated


def test_a_platform_and_a_workload_are_chosen_by_name(controls):
    platform, workload = drawn(controls, "cluster.platform"), drawn(controls, "cluster.stand_in_for")
    (unset, nothing), *others = platform["choices"]
    assert [name for name, _ in others] == names() and "p100-25gbe" in unset and nothing == ""
    assert workload["label"] == "stand in for"
    controls.set("cluster.world", "simulated")
    assert controls.experiment().cluster.platform is None
    controls.set("cluster.platform", "v100-10gbe")
    controls.set("cluster.stand_in_for", "vgg16")
    made = controls.experiment().cluster
    assert (made.platform, made.stand_in_for) == ("v100-10gbe", "vgg16")


def test_what_another_world_does_not_know_is_as_if_unset_there(controls):
    controls.set("cluster.world", "simulated")
    controls.set("cluster.messages", "sizes")
    controls.set("cluster.stand_in_for", "vgg16")
    controls.set("cluster.platform", "cpu-1gbe")
    controls.set("cluster.world", "real")
    assert controls.experiment() == Experiment()
    controls.set("cluster.world", "simulated")
    assert controls.experiment().cluster.messages == "sizes"


def test_a_platform_from_a_file_is_given_back():
    made = Experiment(cluster={"world": "simulated", "platform": "./mine.toml"})
    assert Controls(made).experiment() == made


def test_workers_reach_4096_where_they_are_simulated(controls):
    for path, value in {"cluster.world": "simulated", "cluster.messages": "sizes", "scaling": "weak"}.items():
        controls.set(path, value)
    controls.set("workers", "4096")
    assert controls.experiment().workers == 4096
