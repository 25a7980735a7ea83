"""The experiments each lab runs by itself, so that "Run All" shows what the text says.

Every preset refutes one belief; ``tests/labs`` runs it and asserts that it does.
One file for each lab; a preset is found here by its own name.
"""

from __future__ import annotations

from dlpar.course.presets.data_parallel import (
    CLOUD,
    ONE_GPU_EACH,
    accumulated_statistics,
    accumulation,
    digits_as_mnist,
    faster_links,
    overlap_hides_everything,
    overlapped_training,
    own_samples,
    paced_overlap,
    platform_file,
    sharded_reading,
    sharding_is_free,
    small_batches,
    smaller_buckets,
)
from dlpar.course.presets.first_parallel_run import first_run, four_gpus, four_times_faster, same_answer
from dlpar.course.presets.gossip import (
    cut_edges,
    gossip_run,
    more_neighbours,
    pure_mixing,
    slow_neighbour,
    two_islands,
)
from dlpar.course.presets.hogwild import in_turn, lock_free_scaling, races, shared_weights, slow_writer
from dlpar.course.presets.hybrid import (
    CLUSTERS,
    alone_and_together,
    clusters,
    distbelief,
    factorizations,
    grid,
    one_process,
    orders,
    paced_grid,
)
from dlpar.course.presets.mapreduce import (
    CLUSTER,
    digits_by_mapreduce,
    empty_samples,
    mean_of_means,
    tree_or_star,
    unsteady,
)
from dlpar.course.presets.model_parallel import (
    NVLINK,
    faster,
    heads_and_characters,
    pieces_of_images,
    redundant,
    split_in_two,
)
from dlpar.course.presets.parameter_server import (
    as_the_field_did,
    bound_and_a_slow_worker,
    bound_and_passing_jitter,
    more_updates,
    pull_apart,
    server_that_waits,
    servers,
    stale_gradients,
    stalled_worker,
)
from dlpar.course.presets.pipeline import (
    MICRO_BATCHES,
    RACK,
    bad_cut,
    live_pipeline,
    more_micro_batches,
    schedules,
    small_micro_batches,
    without_a_flush,
)
from dlpar.course.presets.ring_allreduce import (
    OWN_CARDS,
    SHARED_CARDS,
    copies,
    fewer_bytes,
    more_ranks,
    ring_always_wins,
    ring_run,
    slow_rank,
)
from dlpar.course.presets.scaling import (
    GPUS,
    horovod,
    more_workers,
    on_this_machine,
    paced,
    ring_and_servers,
    short_messages,
    this_machine,
    thousands,
    three_worlds,
    trouble,
    weak_and_strong,
)
from dlpar.jobs.control_groups import cores

__all__ = [
    "cores",
    # 00
    "first_run", "four_gpus", "four_times_faster", "same_answer",
    # 01
    "CLUSTER", "digits_by_mapreduce", "empty_samples", "mean_of_means", "tree_or_star", "unsteady",
    # 02
    "as_the_field_did", "bound_and_a_slow_worker", "bound_and_passing_jitter", "more_updates", "pull_apart",
    "server_that_waits", "servers", "stale_gradients", "stalled_worker",
    # 03
    "OWN_CARDS", "SHARED_CARDS", "copies", "fewer_bytes", "more_ranks", "ring_always_wins", "ring_run", "slow_rank",
    # 04
    "cut_edges", "gossip_run", "more_neighbours", "pure_mixing", "slow_neighbour", "two_islands",
    # 05
    "in_turn", "lock_free_scaling", "races", "shared_weights", "slow_writer",
    # 06
    "GPUS", "horovod", "more_workers", "on_this_machine", "paced", "ring_and_servers", "short_messages", "this_machine",
    "thousands", "three_worlds", "trouble", "weak_and_strong",
    # 07
    "CLOUD", "ONE_GPU_EACH", "accumulated_statistics", "accumulation", "digits_as_mnist", "faster_links",
    "overlap_hides_everything", "overlapped_training", "own_samples", "paced_overlap", "platform_file", "sharded_reading",
    "sharding_is_free", "small_batches", "smaller_buckets",
    # 08
    "NVLINK", "faster", "heads_and_characters", "pieces_of_images", "redundant", "split_in_two",
    # 09
    "MICRO_BATCHES", "RACK", "bad_cut", "live_pipeline", "more_micro_batches", "schedules", "small_micro_batches",
    "without_a_flush",
    # 10
    "CLUSTERS", "alone_and_together", "clusters", "distbelief", "factorizations", "grid", "one_process", "orders",
    "paced_grid",
]  # fmt: skip
