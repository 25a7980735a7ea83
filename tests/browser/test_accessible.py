"""Labs without a mouse, without colour vision and in the dark: names, keyboard, words for who listens, contrast."""

from __future__ import annotations

import pytest

from browser.test_panel import paced

CELLS = (
    "from dlpar import lab; from IPython.display import Markdown; display(lab.tooltips())\n"
    "Markdown('A worker computes; its **staleness** is counted in updates. `staleness` $staleness$')",
    f"{paced(60)}\nlab.Panel(dlpar.Experiment(workers=8, steps=600, sync={{'scheme': 'ps', 'consistency': 'asp'}}))",
    "display(lab.predict('a-1', 'How many?', unit='updates', low=0, high=9),\n"
    "        lab.predict('a-2', 'Which?', choices=['one', 'two']), lab.self_test('03'), lab.course())",
)

CONTRAST = """page => {
  const rgb = (css) => (css.match(/[\\d.]+/g) ?? []).map(Number);
  const channel = (c) => ((c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const over = (front, back, a) => front.slice(0, 3).map((c, i) => a * c + (1 - a) * back[i]);
  const behind = (e) => {
    for (const layers = []; ; e = e.parentElement) {
      const colour = e ? rgb(getComputedStyle(e).backgroundColor) : [255, 255, 255];
      layers.push(colour);
      if ((colour[3] ?? 1) === 1) return layers.reverse().reduce((back, c) => over(c, back, c[3] ?? 1));
    }
  };
  const ratio = (front, back) => {
    const [low, high] = [luminance(front), luminance(back)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const found = {};
  const look = (what, e, css, opacity, least) => {
    const back = behind(e.closest("svg")?.parentElement ?? e), colour = rgb(css);
    const seen = ratio(over(colour, back, (colour[3] ?? 1) * opacity), back);
    if (seen < least) found[what] = seen.toFixed(2);
  };
  for (const output of page.querySelectorAll(".jp-OutputArea-output")) {
    const walker = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const text = walker.currentNode.data.trim(), e = walker.currentNode.parentElement;
      const off = e.closest("[disabled], .dlpar-spoken, style, script, mjx-container, .hoverlayer, .modebar");
      if (!text || off || !e.getClientRects().length) continue;
      const style = getComputedStyle(e), svg = e.closest("svg");
      look(text.slice(0, 40), e, svg ? style.fill : style.color, svg ? +style.fillOpacity : 1, 4.5);
    }
    for (const line of output.querySelectorAll(".scatterlayer .trace path.js-line")) {
      const style = getComputedStyle(line);
      look(`line ${style.stroke}`, line, style.stroke, 1, 3);
    }
  }
  return found;
}"""
"""Texts that stand out by less than 4.5, and lines by less than 3 (WCAG 2.2, 1.4.3 and 1.4.11, level AA)."""

FOCUS = """() => {
  const e = document.activeElement, style = getComputedStyle(e);
  const shown = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) || style.boxShadow !== "none";
  return [(e.textContent || e.title || e.type || e.tagName).trim().slice(0, 30), shown];
}"""

MUST_HAVE_NAMES = {
    "button",
    "textbox",
    "combobox",
    "checkbox",
    "radio",
    "spinbutton",
    "tab",
    "progressbar",
    "image",
}


@pytest.fixture(scope="module")
def shown(jupyter, page):
    """A notebook with a panel whose run is over, predictions, a self-test and the map."""
    from browser.jupyter import Notebook

    notebook = Notebook(jupyter, page, "accessible", *CELLS)
    notebook.run_all()
    panel = notebook.panel()
    page.locator(".dlpar-predict").nth(2).wait_for()
    yield panel
    page.evaluate("jupyterapp.commands.execute('apputils:change-theme', { theme: 'JupyterLab Light' })")
    notebook.close()


def focused(page, key: str) -> tuple[str, bool]:
    """What has the focus after a key, and whether one sees that."""
    page.keyboard.press(key)
    return tuple(page.evaluate(FOCUS))


def test_a_run_is_started_and_stopped_by_keyboard_alone_and_told_to_who_listens(shown, page):
    shown.field("workers").focus()
    passed = []
    while "Run" not in (passed[-1][0] if passed else ""):
        passed.append(focused(page, "Tab"))
        assert len(passed) < 12, passed
    spoken = shown.place.locator(".dlpar-spoken").first
    page.keyboard.press("Enter")
    spoken.filter(has_text="A run has begun.").wait_for(state="attached")
    assert shown.run.is_disabled()
    shown.stop.focus()
    passed.append(tuple(page.evaluate(FOCUS)))
    page.keyboard.press("Space")
    shown.wait_for("stopped")
    spoken.filter(has_text="stopped after").wait_for(state="attached")
    assert [name for name, seen in passed if not seen] == []


def test_everything_one_can_press_or_set_has_a_name(shown, page):
    session = page.context.new_cdp_session(page)
    root = session.send("DOM.getDocument")["root"]["nodeId"]
    nameless, seen = [], set()
    for place in (".dlpar-panel", ".dlpar-predict", ".dlpar-explain"):
        for node in session.send("DOM.querySelectorAll", {"nodeId": root, "selector": place})["nodeIds"]:
            for each in session.send("Accessibility.queryAXTree", {"nodeId": node})["nodes"]:
                role = each.get("role", {}).get("value")
                seen.add(role)
                if (
                    role in MUST_HAVE_NAMES
                    and not each["ignored"]
                    and not each.get("name", {}).get("value", "").strip()
                ):
                    nameless.append(role)
    session.detach()
    assert nameless == [] and {"button", "combobox", "radio", "tab", "textbox"} <= seen


def test_the_moment_and_the_tabs_are_chosen_by_keyboard_and_told(shown, page):
    shown.run.click()
    shown.wait_for("done: 600 steps", seconds=40)
    shown.place.locator(".dlpar-run:not([disabled])").wait_for()
    moment = shown.place.get_by_role("slider", name="Moment of the run")
    moment.focus()
    page.keyboard.press("ArrowLeft")
    told = moment.get_attribute("aria-valuetext")
    assert " of " in told and shown.place.locator(".dlpar-now").inner_text() == told.split(" of ")[0]
    page.keyboard.press("Home")
    assert moment.get_attribute("aria-valuetext").startswith("0 ms of ")
    shown.place.get_by_role("tab", selected=True).focus()
    page.keyboard.press("End")
    assert shown.place.get_by_role("tab", selected=True).inner_text() == "Waiting"
    assert shown.place.get_by_role("tabpanel").get_attribute("aria-label") == "Waiting"
    page.keyboard.press("Home")
    assert shown.place.get_by_role("tab", selected=True).inner_text() == "Convergence"


STILL = """panel => [...panel.querySelectorAll("*")].filter(e => {
  const { transitionDuration, animationName } = getComputedStyle(e);
  return /[1-9]/.test(transitionDuration) || animationName !== "none";
}).map(e => e.className)"""
"""What moves by a style sheet."""

FORCED = """panel => {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = "CanvasText";
  const text = getComputedStyle(probe).color;
  probe.remove();
  const colour = (e, of) => getComputedStyle(e)[of];
  return {
    text: [...panel.querySelectorAll(".dlpar-plot .xtick text")].every(e => colour(e, "fill") === text),
    lines: new Set([...panel.querySelectorAll(".dlpar-entry svg path")].map(e => e.getAttribute("stroke"))).size > 3
      && [...panel.querySelectorAll(".dlpar-entry svg")].every(e => colour(e, "forcedColorAdjust") === "none"),
    tab: colour(panel.querySelector(".dlpar-tabs [aria-selected=true]"), "borderBottomColor")
      !== colour(panel.querySelector(".dlpar-tabs [aria-selected=false]"), "borderBottomColor"),
  };
}"""
"""Whether figures keep their colours and have the reader's text colour, and the chosen tab is seen."""


def test_a_reader_who_wants_less_motion_or_other_colours_gets_them(shown, page):
    shown.tab("Staleness")
    page.emulate_media(reduced_motion="reduce", forced_colors="active")
    assert shown.place.evaluate(STILL) == []
    assert shown.place.evaluate(FORCED) == {"text": True, "lines": True, "tab": True}
    page.emulate_media(reduced_motion="null", forced_colors="null")
    shown.tab("Convergence")


def test_terms_are_told_to_pointer_finger_and_keyboard(shown, page):
    terms, bubble = page.locator("dfn.dlpar-term"), page.locator(".dlpar-bubble")
    words = page.locator(".jp-RenderedMarkdown dfn").filter(has_text="staleness")
    assert words.count() == 1, "once: neither in code nor in mathematics, and only at the first place"
    words.hover()
    bubble.filter(has_text="陈旧度. The number of updates applied").wait_for()
    page.mouse.move(2, 2)
    bubble.wait_for(state="hidden")
    terms.first.focus()
    bubble.filter(has_text="工作进程").wait_for()
    assert terms.first.get_attribute("aria-describedby") == bubble.get_attribute("id")
    page.keyboard.press("Escape")
    assert bubble.is_hidden()
    words.dispatch_event("click")  # as a finger's tap does
    bubble.filter(has_text="陈旧度").wait_for()
    page.get_by_label("Dotted words say what they mean").uncheck()
    assert terms.count() == 0 and "staleness" in page.locator(".jp-RenderedMarkdown").first.inner_text()
    page.get_by_label("Dotted words say what they mean").check()


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_text_and_lines_stand_out(shown, page, theme):
    page.evaluate(f"jupyterapp.commands.execute('apputils:change-theme', {{ theme: 'JupyterLab {theme}' }})")
    page.wait_for_function(f"document.body.dataset.jpThemeLight === '{str(theme == 'Light').lower()}'")
    notebook = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
    for _ in range(50):  # figures are drawn anew; on a busy machine this takes a while
        page.wait_for_timeout(100)
        if not (faint := notebook.evaluate(CONTRAST)):
            break
    assert faint == {}


def test_a_figure_has_its_sentence_and_its_table(shown, page):
    assert shown.place.locator(".dlpar-plot").get_attribute("aria-label") == shown.says() != ""
    shown.place.get_by_text("Data as table").focus()
    page.keyboard.press("Enter")
    table = shown.place.get_by_role("region", name="Data of the figure")
    table.locator("tbody tr").first.wait_for()
    assert focused(page, "Tab")[1] and table.evaluate("e => e === document.activeElement")
    assert {"series", "seconds", "loss"} <= set(table.locator("th").all_inner_texts())
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
