import gzip

import numpy as np
import pytest

from dlpar.lab import theme
from dlpar.lab.live_plot import LivePlot, Series, compressed_plotly


class Page:
    """What a page would know from the messages alone; it follows the same rules as live_plot.js."""

    def __init__(self, plot: LivePlot) -> None:
        self.plot, self.sequence, self.curves, self.says, self.messages = plot, -1, {}, "", []
        plot.send = self.receive

    def receive(self, message, buffers=()):
        self.messages.append(message)
        rows = [np.frombuffer(b, "<f8") for b in buffers]
        if message["is"] == "figure":
            self.columns = {t["key"]: len(t["columns"]) for t in message["traces"]}
            self.curves = {
                t["key"]: r.reshape(len(t["columns"]), -1) for t, r in zip(message["traces"], rows)
            }
        elif message["is"] == "points":
            assert message["sequence"] == self.sequence + 1
            for news, flat in zip(message["traces"], rows):
                fresh = flat.reshape(self.columns[news["key"]], -1)
                old = [] if news["whole"] else [self.curves[news["key"]]]
                self.curves[news["key"]] = np.concatenate([*old, fresh], axis=1)
        self.sequence = message.get("sequence", self.sequence)
        self.says = message.get("caption", self.says)

    def ask(self, what):
        self.plot._handle_custom_msg({"ask": what}, [])


@pytest.fixture
def plot():
    made = LivePlot(theme.layout(yaxis=theme.axis("y (1)", (0, 1))), {"step": theme.axis("step", (0, 10))})
    made.add_trace("a", {"name": "a"}, ("step", "y"), {"x": "*", "y": "y"}, limit=100)
    yield made
    made.close()


def test_page_knows_all_points_through_many_thinnings(plot):
    page = Page(plot)
    for i in range(5000):
        plot.series("a").add((i, i / 2))
        if i % 37 == 0:
            plot.flush()
    plot.flush()
    assert (page.curves["a"].T == plot.series("a").rows).all()
    assert len(plot.series("a")) <= 100


def test_page_that_comes_late_gets_everything_and_follows_on(plot):
    for i in range(10):
        plot.series("a").add((i, i))
    plot.set_caption("ten points")
    plot.flush()
    page = Page(plot)
    page.ask("figure")
    plot.series("a").add((10, 10))
    plot.flush()
    assert page.curves["a"][0].tolist() == list(range(11)) and page.says == "ten points"


def test_nothing_is_sent_without_news_but_a_sign_of_life_if_asked(plot):
    page = Page(plot)
    plot.flush()
    before = len(page.messages)
    assert not plot.flush() and len(page.messages) == before
    assert plot.flush(alive=True) and page.messages[-1]["traces"] == []


def test_no_point_travels_as_widget_state(plot):
    Page(plot)
    before = plot.get_state()
    for i in range(100):
        plot.series("a").add((i, i))
    plot.flush()
    assert plot.get_state() == before


def test_ranges_travel_once_and_stay(plot):
    page = Page(plot)
    plot.flush()
    plot.set_range("yaxis", 0, 2)
    plot.set_range("step", 0, 20)
    plot.flush()
    assert page.messages[-1]["ranges"] == {"yaxis": [0, 2], "step": [0, 20]}
    plot.set_range("yaxis", 0, 2)
    assert not plot.flush()
    page.ask("figure")
    assert page.messages[-1]["layout"]["yaxis"]["range"] == [0, 2]
    assert page.messages[-1]["x_axes"]["step"]["range"] == [0, 20]


def test_removed_trace_is_gone_from_the_page(plot):
    page = Page(plot)
    plot.flush()
    plot.remove("a")
    plot.remove("never there")
    plot.flush()
    assert page.curves == {}


def test_plotly_js_comes_compressed_from_the_installed_package(plot):
    page, kept = Page(plot), []
    plot.send = lambda message, buffers: kept.append((message, buffers))
    page.ask("plotly")
    ((message, (compressed,)),) = kept
    assert message == {"is": "plotly"} and len(compressed) < 2e6
    assert b"plotly.js v" in gzip.decompress(compressed)[:100]
    assert compressed_plotly() is compressed_plotly()


def test_script_and_style_fetch_nothing():
    assert "http" not in LivePlot._esm and "http" not in LivePlot._css and "@import" not in LivePlot._css


def test_long_curve_keeps_measured_rows_at_a_stride_that_is_a_power_of_two():
    series = Series(2, limit=100)
    for i in range(20_001):
        series.add((i, i * i))
        assert len(series) <= 100
    steps = series.rows[:, 0]
    assert series.stride == 256
    assert (np.diff(steps) == 256).all() and steps[0] == 0
    assert (series.rows[:, 1] == steps**2).all()


def test_short_curve_keeps_every_row():
    series = Series(1, limit=100)
    for i in range(100):
        series.add((i,))
    assert series.rows[:, 0].tolist() == list(range(100)) and series.stride == 1


def test_reader_that_takes_only_what_is_new_sees_what_is_held():
    series, seen = Series(1, limit=50), np.empty((0, 1))
    for i in range(1000):
        series.add((i,))
        if i % 7 == 0:
            whole, rows = series.take_new()
            seen = rows.copy() if whole else np.concatenate([seen, rows])
            assert (seen == series.rows).all()


def test_curve_ends_on_its_last_row_once():
    series = Series(1, limit=4)
    for i in range(10):
        series.add((i,))
    series.finish((9,))
    series.finish((9,))
    assert series.rows[:, 0].tolist()[-1] == 9 and (np.diff(series.rows[:, 0]) > 0).all()
    assert len(series) <= 4
