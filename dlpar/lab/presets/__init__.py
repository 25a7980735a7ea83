"""The experiments each lab runs by itself, so that "Run All" shows what the text says.

Every preset refutes one belief; ``tests/labs`` runs it and asserts that it does.
One file for each lab; a preset is found here by its own name.
"""

from dlpar.control_groups import cores
from dlpar.lab.presets.first_parallel_run import first_run, four_times_faster, same_answer
from dlpar.lab.presets.gossip import cut_edges, gossip_run, more_neighbours, pure_mixing, slow_neighbour, two_islands
from dlpar.lab.presets.hogwild import in_turn, lock_free_scaling, races, shared_weights, slow_writer
from dlpar.lab.presets.mapreduce import digits_by_mapreduce, empty_samples, mean_of_means, tree_or_star, unsteady
from dlpar.lab.presets.parameter_server import (
    as_the_field_did, bound_and_a_slow_worker, bound_and_passing_jitter, more_updates, pull_apart, server_that_waits,
    servers, stale_gradients, stalled_worker,
)  # fmt: skip
from dlpar.lab.presets.ring_allreduce import RACK, copies, fewer_bytes, more_ranks, ring_always_wins, slow_rank
from dlpar.lab.presets.scaling import (
    GPUS, horovod, more_workers, on_this_machine, paced, ring_and_servers, short_messages, this_machine, thousands,
    three_worlds, trouble, weak_and_strong,
)  # fmt: skip

__all__ = [
    "cores",
    # 00
    "first_run", "four_times_faster", "same_answer",
    # 01
    "digits_by_mapreduce", "empty_samples", "mean_of_means", "tree_or_star", "unsteady",
    # 02
    "as_the_field_did", "bound_and_a_slow_worker", "bound_and_passing_jitter", "more_updates", "pull_apart",
    "server_that_waits", "servers", "stale_gradients", "stalled_worker",
    # 03
    "RACK", "copies", "fewer_bytes", "more_ranks", "ring_always_wins", "slow_rank",
    # 04
    "cut_edges", "gossip_run", "more_neighbours", "pure_mixing", "slow_neighbour", "two_islands",
    # 05
    "in_turn", "lock_free_scaling", "races", "shared_weights", "slow_writer",
    # 06
    "GPUS", "horovod", "more_workers", "on_this_machine", "paced", "ring_and_servers", "short_messages", "this_machine",
    "thousands", "three_worlds", "trouble", "weak_and_strong",
]  # fmt: skip
