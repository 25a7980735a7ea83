"""Lab 11: published systems, each run by its own mechanism and with one design choice undone."""

from __future__ import annotations

from dlpar import Experiment, Run
from dlpar.course.rehearse import Row, Shown
from dlpar.systems import SYSTEMS, compare, find
from dlpar.systems.record import rate
from dlpar.systems.servers import SLOW, learning, per_machine, ps


def softsync() -> dict[str, Experiment]:
    """Simulate Rudra's n-softsync on 30 workers for n = 1, 15 and 30, and with its leaf servers."""
    return find("rudra", SYSTEMS).experiments()


def _as_published(runs: dict[str, Run]) -> Shown:
    found = compare(find("rudra", SYSTEMS), runs)
    said = "; ".join(f"{each.what} {each.ours:.3g}, published {each.published:g}" for each in found)
    return all(each.held for each in found), said


def backup_workers() -> dict[str, Experiment]:
    """Simulate 50 workers and b backup workers, with uneven and with even steps."""
    published = find("tensorflow_backup", SYSTEMS).experiments()
    uneven = {name: published[name] for name in ("b = 0", "b = 2", "b = 6")}
    return uneven | {f"{name}, even": e.replace(delays={"delay_cv": 0.001}) for name, e in uneven.items()}


def _pay_if_uneven(runs: dict[str, Run]) -> Shown:
    uneven = [per_machine(runs, b) for b in (2, 6)]
    even = rate(runs["b = 2, even"]) / 52 / (rate(runs["b = 0, even"]) / 50)
    said = f"pace of a machine, over that without: b = 2 {uneven[0]:.3f}, b = 6 {uneven[1]:.3f}; even steps {even:.3f}"
    return uneven[0] > max(1.0, uneven[1]) and even < 1, said


def unpublished() -> dict[str, Experiment]:
    """Simulate groups with different models that average without waiting. Then undo one choice."""
    groups = ps(groups=2, group_period=5, consistency="asp")
    both = {"no waiting": groups, "in step": groups | {"consistency": "bsp"}}
    return {f"groups average, {how}": learning(sync, SLOW) for how, sync in both.items()}


def _free_groups_are_quicker(runs: dict[str, Run]) -> Shown:
    free, step = (rate(run) for run in runs.values())
    right = [run.summary["accuracy"] for run in runs.values()]
    said = f"{free:.0f} and {step:.0f} samples/s, {right[0]:.0%} and {right[1]:.0%} right"
    return free > 1.2 * step and min(right) > 0.85, said


TABLE = (
    Row(softsync, "Rudra's staleness here matches the published figure", _as_published),
    Row(backup_workers, '"A machine whose work is dropped is wasted"', _pay_if_uneven),
    Row(unpublished, "Groups that average without waiting train, too", _free_groups_are_quicker),
)
