"""What a page knows of a widget from its messages alone; it follows the same rules as link.js and figure.js."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from dlpar.lab.page import Page
from dlpar.lab.plot import Drawing


class Seen:
    """A figure, as FigureData of figure.js holds it."""

    def __init__(self) -> None:
        self.curves: dict[str, np.ndarray] = {}

    def take(self, news: dict[str, Any], buffers: list[bytes]) -> None:
        news, rows = _through_json(news), [np.frombuffer(buffer, "<f8") for buffer in buffers]
        assert len(rows) == len(news["traces"])
        if news.get("whole"):
            self.traces = {trace["key"]: trace for trace in news["traces"]}
            self.curves = {
                key: flat.reshape(len(t["columns"]), -1) for (key, t), flat in zip(self.traces.items(), rows)
            }
            self.layout, self.x_axes, self.x = news["layout"], news["x_axes"], news["x"]
        self.caption = news["caption"] if "caption" in news else self.caption
        for axis, looks in news.get("axes", {}).items():
            (self.x_axes if axis in self.x_axes else self.layout)[axis].update(looks)
        if not news.get("whole"):
            for own, flat in zip(news["traces"], rows):
                fresh = flat.reshape(len(self.traces[own["key"]]["columns"]), -1)
                old = [] if own["whole"] else [self.curves[own["key"]]]
                self.curves[own["key"]] = np.concatenate([*old, fresh], axis=1)

    def assert_like(self, drawing: Drawing) -> None:
        """Fail unless the page shows what the kernel has."""
        whole, buffers = drawing.snapshot()
        other = Seen()
        other.take(whole, buffers)
        assert self.caption == other.caption and list(self.traces) == list(other.traces)
        assert (self.layout, self.x_axes) == (other.layout, other.x_axes)
        for key, points in other.curves.items():
            assert np.array_equal(self.curves[key], points, equal_nan=True), key


class Reader:
    """A page that shows a widget."""

    def __init__(self, page: Page) -> None:
        self.page, self.messages, self.sequence = page, [], -1
        self.state: dict[str, Any] = {}
        self.figures: dict[str, Seen] = {}
        page.send = self.receive
        self.ask("all")

    def ask(self, what: str) -> None:
        self.page._handle_custom_msg({"ask": what}, [])

    def do(self, **message: Any) -> None:
        self.page._handle_custom_msg(message, [])

    def receive(self, message: dict[str, Any], buffers: tuple = ()) -> None:
        buffers = list(buffers)
        self.messages.append(message)
        if message["is"] == "plotly":
            return
        if message["is"] == "changes":
            assert message["sequence"] == self.sequence + 1, "a page would ask for everything again"
            state = self.state | _through_json(message["state"])
        else:
            state = _through_json(message["state"])
            self.figures = {t: f for t, f in self.figures.items() if t in state.get("tabs", ())}
        self.sequence = message["sequence"]
        for title, news in message["figures"].items():
            own, buffers = buffers[: len(news["traces"])], buffers[len(news["traces"]) :]
            self.figures.setdefault(title, Seen()).take(news, own)
        assert not buffers
        self.state = state  # at last: a test that waits for it looks at figures then

    def assert_like_the_kernel(self) -> None:
        """Fail unless state and figures are those of the kernel."""
        assert self.state == _through_json(self.page.state)
        for title, drawing in self.page.figures.items():
            self.figures[title].assert_like(drawing)


def _through_json(news: Any) -> Any:
    """As it arrives: JSON has no NaN."""
    return json.loads(json.dumps(news, allow_nan=False))
