"""Closed forms for failing runs: snapshot interval, goodput, failures of many nodes, copies in memory.

Failures of the whole job are a Poisson process: the time to the next failure is exponential with mean M, the
MTBF. A snapshot stops training for δ seconds. After a failure, R seconds pass until the last snapshot is
loaded.
"""

from __future__ import annotations

import math
from math import comb

DAY = 86_400.0
"""Seconds of a day."""


def young_interval(snapshot: float, mtbf: float) -> float:
    """Return Young's interval between snapshots, √(2 δ M).

    This is the first-order optimum for δ much shorter than M.

    Source: J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.

    Parameters
    ----------
    snapshot : float
        δ, seconds during which a snapshot stops training.
    mtbf : float
        M, mean seconds between failures of the job.

    Returns
    -------
    float
        Seconds of training between the end of a snapshot and the start of the next.
    """
    _positive(snapshot=snapshot, mtbf=mtbf)
    return math.sqrt(2 * snapshot * mtbf)


def daly_interval(snapshot: float, mtbf: float) -> float:
    """Return Daly's interval, √(2 δ M) (1 + √(δ / 2M) / 3 + (δ / 2M) / 9) - δ.

    Return M if δ is 2 M or longer.

    Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future
    Generation Computer Systems 22(3), 2006.  Parameters and result as of :func:`young_interval`.
    """
    first, ratio = young_interval(snapshot, mtbf), math.sqrt(snapshot / mtbf / 2)
    return first * (1 + ratio / 3 + ratio**2 / 9) - snapshot if ratio < 1 else mtbf


def best_interval(snapshot: float, mtbf: float) -> float:
    """Return the interval with the highest :func:`goodput`: M (1 + W(-exp(-δ/M - 1))), with Lambert's W.

    At this interval the derivative of the exact form is 0. R does not change the optimum.  Source: follows
    from Daly (2006). Parameters and result as of :func:`young_interval`.
    """
    from scipy.special import lambertw

    _positive(snapshot=snapshot, mtbf=mtbf)
    return mtbf * (1 + float(lambertw(-math.exp(-snapshot / mtbf - 1)).real))


def goodput(interval: float, snapshot: float, mtbf: float, recovery: float = 0.0) -> float:
    """Return the expected share of time spent on useful steps: τ / [M e^{R/M} (e^{(τ+δ)/M} - 1)].

    Failures also occur while a snapshot is written or the job recovers. The recovery then starts again.

    Source: Daly (2006), with the time of a whole run applied to one interval.

    Parameters
    ----------
    interval : float
        τ, seconds of training between two snapshots.
    snapshot, mtbf : float
        δ and M, as of :func:`young_interval`. Here δ may be 0.
    recovery : float, default 0
        R, seconds from a failure until training continues: for detection, restart and loading a snapshot.

    Returns
    -------
    float
        From 0 to 1.
    """
    _positive(interval=interval, mtbf=mtbf)
    failures = (interval + snapshot) / mtbf  # both exponentials are at most 1, so that neither overflows
    return interval / mtbf * math.exp(-recovery / mtbf - failures) / -math.expm1(-failures)


def mtbf_of(nodes: float, failures: float) -> float:
    """Return a job's mean seconds between failures. The mean is proportional to 1 / nodes.

    Source: Kokolis et al., Revisiting Reliability in Large-Scale Machine Learning Research Clusters, HPCA 2025
    (arXiv 2410.21680), which measures 6.50 failures in 1,000 days of nodes with 8 GPUs each.

    Parameters
    ----------
    nodes : float
        Nodes of the job. They fail independently, and one failure ends the job.
    failures : float
        Failures in 1,000 days of one node.
    """
    _positive(nodes=nodes, failures=failures)
    return 1000 * DAY / (nodes * failures)


def copies_lost(nodes: int, copies: int, failed: int, placement: str = "group") -> float:
    """Return the probability that all copies of a node's state were on nodes that failed together.

    Any set of `failed` nodes is equally likely.

    Source: Wang et al., GEMINI, SOSP 2023, section 4: groups are the best placement.  The paper bounds the
    probability for groups. This form is exact for groups and for a ring, by inclusion and exclusion.

    Parameters
    ----------
    nodes : int
        N.
    copies : int
        m, including the node's own. The memory of m nodes holds each state.
    failed : int
        k, from 0 to N.
    placement : str, default "group"
        ``"group"``: m nodes hold each other's states, and m divides N.  ``"ring"``: a node's next m - 1
        neighbours hold its state.

    Raises
    ------
    ValueError
        If a number or the placement is impossible.
    """
    fine = 1 <= copies <= nodes and 0 <= failed <= nodes
    if not fine or placement not in ("group", "ring") or (placement == "group" and nodes % copies):
        got = f"nodes, copies, failed, placement: got {nodes}, {copies}, {failed}, {placement}"
        raise ValueError(f"{got}; allowed are groups of copies that divide nodes, or a ring")
    alive = nodes - failed
    if not alive:
        return 1.0
    some = range(failed // copies + 1)
    if placement == "group":  # sets of failures that leave a node of each group alive
        kept = sum((-1) ** j * comb(nodes // copies, j) * comb(nodes - j * copies, alive) for j in some)
    else:  # sets without m neighbours in a row: gaps below m between live nodes, in each rotation
        gaps = sum((-1) ** j * comb(alive, j) * comb(nodes - j * copies - 1, alive - 1) for j in some)
        kept = nodes * gaps // alive
    return (comb(nodes, failed) - kept) / comb(nodes, failed)


def _positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{name}: got {number}, allowed is above 0")
