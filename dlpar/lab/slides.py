"""Parts of a deck of slides: its style, the position of a slider, the picture of a panel."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.display import HTML

    from dlpar.lab.figure import Figure
    from dlpar.lab.panel import Panel


def look() -> HTML:
    """Style of a deck in JupyterLab's deck mode; elsewhere the notebook stays as it is."""
    from IPython.display import HTML

    return HTML(f"<style>{Path(__file__).with_name('slides.css').read_text()}</style>")


def at(figure: Figure, step: int) -> Figure:
    """Move the slider of `figure` to `step`.

    Parameters
    ----------
    figure : Figure
        A figure with a slider, such as that of :func:`dlpar.lab.animate`.
    step : int
        Position of the slider, counted from 0.

    Raises
    ------
    ValueError
        If the figure has no slider, or its slider has no such step.
    """
    steps = figure.layout.sliders[0].steps if figure.layout.sliders else ()
    if not 0 <= step < len(steps):
        allowed = f"step: got {step}, allowed is 0 to {len(steps) - 1}"
        raise ValueError(allowed if steps else "figure: it has no slider")
    traces, layout, _ = steps[step].args
    figure.update_traces({name: values[0] for name, values in traces.items()})
    figure.layout.annotations = layout["annotations"]
    figure.layout.sliders[0].active = step
    return figure


def still(panel: Panel, timeout: float = 60.0) -> Figure:
    """Do what the Run button does, wait, and return the figure in front as it is at the end.

    Parameters
    ----------
    panel : Panel
    timeout : float, default 60
        Seconds.

    Raises
    ------
    JobFailed
        If the run fails.
    TimeoutError
        If it is still running after `timeout` seconds.
    """
    end = time.monotonic() + timeout
    panel.run().wait(timeout)
    while panel.running:  # the job has ended; its last records may not have reached the figures yet
        if time.monotonic() > end:
            raise TimeoutError(f"the panel's run is still running after {timeout:g} s")
        time.sleep(0.02)
    return panel.picture()
