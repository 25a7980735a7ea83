"""What a deck of slides needs besides a notebook's own words: its look, a slider's place, a panel's picture."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.display import HTML

    from dlpar.lab.figure import Figure
    from dlpar.lab.panel import Panel


def look() -> HTML:
    """How a deck looks in JupyterLab's deck mode; elsewhere the notebook stays as it is."""
    from IPython.display import HTML

    return HTML(f"<style>{Path(__file__).with_name('slides.css').read_text()}</style>")


def at(figure: Figure, step: int) -> Figure:
    """`figure`, its slider moved to `step`.

    Parameters
    ----------
    figure : Figure
        One with a slider, as of :func:`dlpar.lab.animate`.
    step : int
        Counted from 0.

    Raises
    ------
    ValueError
        If the figure has no slider, or its slider no such step.
    """
    steps = figure.layout.sliders[0].steps if figure.layout.sliders else ()
    if not 0 <= step < len(steps):
        raise ValueError(
            f"step: got {step}, allowed is 0 to {len(steps) - 1}" if steps else "figure: it has no slider"
        )
    traces, layout, _ = steps[step].args
    figure.update_traces({name: values[0] for name, values in traces.items()})
    figure.layout.annotations = layout["annotations"]
    figure.layout.sliders[0].active = step
    return figure


def still(panel: Panel, timeout: float = 60.0) -> Figure:
    """Do what Run does, wait, and give the figure in front as it is drawn at the end.

    Parameters
    ----------
    panel : Panel
    timeout : float
        Seconds.

    Raises
    ------
    JobFailed
        If the run fails.
    TimeoutError
        If it still goes on after `timeout` seconds.
    """
    from dlpar.lab.cell import all_below
    from dlpar.lab.panel import Tabs

    end = time.monotonic() + timeout
    panel.run().wait(timeout)
    while panel.running:  # the job is done; its last records may still be on their way to the figures
        if time.monotonic() > end:
            raise TimeoutError(f"the panel's run still goes on after {timeout:g} s")
        time.sleep(0.02)
    tabs = next(widget for widget in all_below(panel) if isinstance(widget, Tabs))
    return tabs.children[tabs.selected_index].picture()
