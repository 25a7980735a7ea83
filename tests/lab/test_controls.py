"""Controls of parts that come in several kinds, and of fields that are mappings."""

import pytest

from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.lab.controls import Controls

SCHEMES = ["ring", "mapreduce", "gossip", "hogwild",
           {"scheme": "ps", "consistency": "ssp", "staleness": 7, "servers": 2},
           {"scheme": "gossip", "topology": "edges", "edges": [(0, 1), (1, 2), (2, 3)]}]  # fmt: skip


def shown(controls, part):
    return {
        path.partition(".")[2]
        for path, widget in controls.widgets.items()
        if path.startswith(f"{part}.") and widget.layout.display != "none"
    }


@pytest.fixture
def controls():
    return Controls(Experiment(), lambda: None)


def test_only_fields_of_the_chosen_scheme_are_shown(controls):
    assert shown(controls, "sync") == {"scheme", "allreduce", "overlap", "bucket_mb"}
    controls.widgets["sync.scheme"].value = "ps"
    assert {"servers", "consistency", "pull"} <= shown(controls, "sync") and "overlap" not in shown(
        controls, "sync"
    )


def test_fields_that_mean_nothing_beside_others_are_hidden(controls):
    controls.widgets["sync.scheme"].value = "ps"
    assert "staleness" not in shown(controls, "sync")
    controls.widgets["sync.consistency"].value = "ssp"
    assert "staleness" in shown(controls, "sync") and "softsync" not in shown(controls, "sync")
    assert shown(controls, "delays") == {"kind", "straggler", "stall"}
    controls.widgets["delays.kind"].value = "gamma"
    assert {"delay_ms", "delay_cv"} <= shown(controls, "delays")


def test_what_was_set_for_another_scheme_is_remembered(controls):
    controls.widgets["sync.scheme"].value = "ps"
    controls.widgets["sync.servers"].value = 2
    controls.widgets["sync.scheme"].value = "gossip"
    assert controls.experiment().sync.scheme == "gossip"
    controls.widgets["sync.scheme"].value = "ps"
    assert controls.experiment() == Experiment(sync={"scheme": "ps", "servers": 2})


@pytest.mark.parametrize("sync", SCHEMES, ids=str)
def test_controls_give_back_an_experiment_of_any_scheme(sync):
    made = Experiment(workers=4, sync=sync, delays={"straggler": {1: 4.0}, "stall": {2: 1.5}})
    assert Controls(made, lambda: None).experiment() == made


def test_only_settings_of_the_chosen_split_are_shown_and_each_has_its_own_default(controls):
    split, tensor = controls.widgets["split.kind"], controls.widgets["split.tensor"]
    assert shown(controls, "split") == {"kind", "microbatches", "zero"}
    split.value = "tensor"
    assert shown(controls, "split") == {"kind", "order", "tensor", "redundancy"}
    assert (tensor.description, tensor.value) == ("tensor (0: all)", 0)
    split.value = "spatial"
    assert shown(controls, "split") == {"kind", "order", "rows", "columns"}
    split.value = "hybrid"
    assert shown(controls, "split") == {
        "kind",
        "order",
        "tensor",
        "stages",
        "schedule",
        "microbatches",
        "partition",
        "recompute",
    }
    assert (tensor.value, controls.widgets["split.stages"].value) == (
        2,
        2,
    ) and "from 1 to 64" in tensor.tooltip
    assert tensor.description == "tensor"
    split.value = "pipeline"
    assert controls.widgets["split.stages"].value == 0 and controls.widgets["split.microbatches"].value == 8
    controls.widgets["split.schedule"].value = "interleaved"
    assert "chunks" in shown(controls, "split")


def test_what_was_set_for_another_split_is_remembered_although_a_default_differs(controls):
    split, tensor = controls.widgets["split.kind"], controls.widgets["split.tensor"]
    split.value, tensor.value = "tensor", 4
    split.value = "data"
    split.value = "hybrid"
    assert tensor.value == 2
    split.value = "tensor"
    assert tensor.value == 4


def test_a_change_of_kind_is_told_once_when_all_its_settings_are_there():
    told = []
    controls = Controls(Experiment(workers=4), lambda: told.append(controls.experiment().split.axes(4)))
    controls.widgets["split.kind"].value = "hybrid"
    assert told == [{"pipeline": 2, "tensor": 2}]


def test_a_share_of_neurons_set_for_an_mlp_does_not_stand_in_the_way_of_a_cnn(controls):
    controls.widgets["split.kind"].value = "tensor"
    controls.widgets["split.redundancy"].value = 0.5
    controls.widgets["model.name"].value = "cnn"
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
    assert Controls(made, lambda: None).experiment() == made


def test_mappings_and_edges_are_typed_as_text(controls):
    controls.widgets["delays.straggler"].value = "1=4.0, 2=1.5"
    controls.widgets["sync.scheme"].value = "gossip"
    controls.widgets["sync.topology"].value = "edges"
    controls.widgets["sync.edges"].value = "0-1,1-2,2-3"
    made = controls.experiment()
    assert made.delays.straggler == {1: 4.0, 2: 1.5} and made.sync.edges == ((0, 1), (1, 2), (2, 3))
    controls.widgets["sync.topology"].value = "ring"  # its edges stay typed, and mean nothing now
    assert controls.experiment().sync.edges == ()


def test_a_bad_mapping_is_explained(controls):
    controls.widgets["delays.straggler"].value = "one=4"
    with pytest.raises(
        BadExperiment, match="delays.straggler: got 'one=4', allowed is numbers from 1 to 1000"
    ):
        controls.experiment()


def test_a_scheme_typed_in_a_cell_stays_a_choice_only_where_it_was_one(controls):
    def mine(comm, tensor):
        return None

    assert "own" not in controls.widgets["sync.scheme"].options
    own = Experiment(sync=mine)
    with_own = Controls(own, lambda: None)
    assert with_own.experiment() == own
    with_own.widgets["sync.scheme"].value = "ring"
    assert with_own.experiment().sync.scheme == "ring"
    with_own.widgets["sync.scheme"].value = "own"
    assert with_own.experiment() == own and "sync.code" not in with_own.widgets


def test_width_is_hidden_where_the_model_has_no_hidden_layers(controls):
    assert {"width", "depth"} <= shown(controls, "model")
    controls.widgets["model.name"].value = "logistic"
    assert shown(controls, "model") == {"name"}
