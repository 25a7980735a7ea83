"""What a widget tells its page: everything when asked, then only what changed, in order."""

import gzip
import threading
from types import SimpleNamespace

import anywidget
import pytest
from ipywidgets.widgets.widget import _instances

from dlpar.config.schema import BadExperiment
from dlpar.lab import page as module
from dlpar.lab import theme
from dlpar.lab.page import HERE, Page, compressed_plotly
from dlpar.lab.plot import Drawing
from dlpar.lab.prediction import Prediction
from dlpar.lab.run_page import RunPage
from lab.folders import until
from lab.readers import Reader


class Made(Page):
    """A page with one figure."""

    _esm = module.module("plotly", "link")

    def __init__(self):
        super().__init__()
        drawing = Drawing()
        drawing.relayout(xaxis=theme.axis("x"), yaxis=theme.axis("y", (0, 1)))
        drawing.add_trace("a", {"name": "a"}, ("x", "y"), {"x": "x", "y": "y"})
        self.figures, self.asked = {"One": drawing}, []

    def hear(self, message):
        self.asked.append(message)
        if "fail" in message:
            raise message["fail"]


@pytest.fixture
def made():
    page = Made()
    yield page
    page.close()


def test_a_page_that_is_loaded_gets_everything_and_then_changes(made):
    made.tell(words="before", done=1)
    made.figures["One"].series("a").add((1, 2))
    made.flush()
    reader = Reader(made)
    assert reader.state == {"words": "before", "done": 1} and reader.figures["One"].curves["a"].size == 2
    made.tell(words="before", done=2)
    made.figures["One"].series("a").add((2, 3))
    made.flush()
    assert reader.messages[-1]["state"] == {"done": 2}
    reader.assert_like_the_kernel()


def test_two_pages_of_a_widget_both_follow_although_one_is_loaded_again(made):
    first = Reader(made)
    made.tell(done=1)
    second = Reader(made)  # the kernel's messages go to both
    made.send = lambda message, buffers=(): [each.receive(message, buffers) for each in (first, second)]
    first.ask("all")
    made.tell(done=2)
    made.flush()
    first.assert_like_the_kernel()
    second.assert_like_the_kernel()


def test_nothing_is_sent_without_news_but_a_sign_of_life_if_asked(made):
    reader = Reader(made)
    sent = len(reader.messages)
    made.tell()
    assert not made.flush() and len(reader.messages) == sent
    assert made.flush(alive=True)
    assert reader.messages[-1]["state"] == {} and reader.messages[-1]["figures"] == {}


def test_every_message_has_the_next_number(made):
    reader = Reader(made)
    for number in range(3):
        made.tell(done=number)
        made.flush()
    assert [message["sequence"] for message in reader.messages] == [1, 2, 3, 4]


def test_nothing_travels_as_widget_state(made):
    before = made.get_state()
    made.tell(words="other")
    made.figures["One"].series("a").add((1, 2))
    made.flush()
    assert made.get_state() == before


def test_changes_from_several_threads_all_arrive(made):
    reader = Reader(made)

    def work(name):
        for number in range(200):
            made.tell(**{name: number})
            made.flush()

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for _ in range(20):
        reader.ask("all")
    for thread in threads:
        thread.join()
    made.flush()
    assert reader.state == {"a": 199, "b": 199, "c": 199}


def test_what_fails_in_a_button_is_said_on_the_page(made):
    reader = Reader(made)
    reader.do(fail=BadExperiment("workers: got 0"))
    assert reader.state["message"] == "workers: got 0"
    reader.do(fail=ZeroDivisionError("no"))
    assert reader.state["message"] == "ZeroDivisionError: no"
    made.beside(lambda: made.tell(message="from a thread"))
    until(lambda: reader.state["message"] == "from a thread")


# ---- running a cell again ------------------------------------------------------------


def test_running_a_cell_again_closes_what_it_showed_but_nothing_else(monkeypatch):
    where = iter((("one", "first"), ("one", "first"), ("two", "first"), ("one", "second")))
    monkeypatch.setattr(module, "this_cell", lambda: next(where))
    first, beside, other, again = (Made() for _ in range(4))
    assert (first.comm, beside.comm) == (None, None)
    assert other.comm is not None and again.comm is not None
    other.close(), again.close()


def test_outside_a_notebook_there_is_no_cell_and_no_way_beside_cells(made):
    assert module.this_cell() is None and made.address == ""


# ---- answering while a cell runs -----------------------------------------------------


def test_a_page_is_answered_on_the_control_channel_by_its_address(monkeypatch):
    kernel = SimpleNamespace(control_handlers={})
    monkeypatch.setattr(module, "kernel", lambda: kernel)
    one, other = Made(), Made()
    assert one.address and one.get_state()["address"] == one.address != other.address
    answer = kernel.control_handlers["dlpar_msg"]
    answer(None, None, {"content": {"address": one.address, "data": {"do": "it"}}})
    assert (one.asked, other.asked) == ([{"do": "it"}], [])
    one.close(), other.close()
    answer(None, None, {"content": {"address": one.address, "data": {"do": "it"}}})
    answer(None, None, {"content": {"address": "none such", "data": {"do": "it"}}})
    assert len(one.asked) == 1


def test_a_kernel_without_a_control_channel_is_called_as_any_widget(monkeypatch):
    monkeypatch.setattr(module, "kernel", SimpleNamespace)
    page = Made()
    assert page.address == "" and not module.answer_beside_cells()
    page.close()


# ---- what a page loads ---------------------------------------------------------------


def test_plotly_comes_compressed_from_the_installed_package(made):
    kept = []
    made.send = lambda message, buffers: kept.append((message, buffers))
    made._handle_custom_msg({"ask": "plotly"}, [])
    until(lambda: kept)
    message, (compressed,) = kept[0]
    assert message == {"is": "plotly"} and len(compressed) < 2e6
    assert b"plotly.js v" in gzip.decompress(compressed)[:100]
    assert compressed_plotly() is compressed_plotly()


def test_modules_beside_each_other_become_one():
    text = module.module("plotly", "preview", "table", "link", "results", "figure", "panel")
    lines = text.splitlines()
    assert not [line for line in lines if line.startswith("import ")]
    assert [line for line in lines if line.startswith("export ")] == ["export default () => {"]
    names = [line.split()[1] for line in lines if line.startswith(("class ", "function "))]
    assert len(names) == len(set(names)), "a name is declared twice"


@pytest.mark.parametrize("kind", [RunPage, Prediction])
def test_script_and_style_fetch_nothing(kind):
    text = f"{kind._esm}{kind._css}".replace("http://www.w3.org/2000/svg", "")
    assert [word for word in ("http", "fetch(", "@import", "url(") if word in text] == []


def test_every_module_of_the_page_is_used():
    used = {"plotly", "preview", "table", "link", "results", "figure", "panel", "prediction", "selftest"}
    assert {file.stem for file in HERE.glob("*.js")} == used


def test_a_page_is_one_model(made):
    before = set(_instances)
    other = Made()
    new = {type(_instances[key]).__name__ for key in set(_instances) - before}
    assert new == {"Made", "Layout"} and isinstance(other, anywidget.AnyWidget)
    other.close()
