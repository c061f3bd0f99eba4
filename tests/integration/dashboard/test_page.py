"""Every view in a browser: what it says of a job that has failed, and that no text of a job becomes markup."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.dashboard.export import export
from hvd_elastic_ext.dashboard.jobs import job_of
from tests.integration.dashboard.conftest import EVIL, MARKUP, Served, write_job
from tests.support.browser import Tab, browser, needs_chromium
from tests.support.journals import JournalMaker

pytestmark = [needs_chromium, pytest.mark.timeout(300)]
OF_A_JOB = ("Now", "Timeline", "Hosts", "Logs", "Checkpoints", "Autoscaling")
VIEWS = {"served": (*OF_A_JOB, "Jobs"), "exported": OF_A_JOB}
CLUSTER = {
    "namespace": f"ml {MARKUP}",
    "problem": f"no answer from the API server {MARKUP}",
    "jobs": [
        {"name": f"digits-{state}-with-a-long-name", "kind": "MPIJob", "state": state, "failed": state == "Failed",
         "message": MARKUP, "ready": 1, "asked": 2, "created": "2026-01-01T00:00:00Z",
         "do": "Its journal is not read here: `hvd-elastic events digits -n ml` tells what happened."}
        for state in ("Pending", "Running", "Suspended", "Succeeded", "Failed")
    ],
}  # fmt: skip
"""What the server tells of a namespace."""
CONTRAST = """
(() => {
  const part = (v) => v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const light = (colour) => {
    const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).map(part);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return 'rgb(0, 0, 0)';
  };
  const bad = [];
  for (const e of document.querySelectorAll('main *, header *, nav *, #verdict *')) {
    const told = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!told || !e.offsetParent) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) bad.push(`${e.tagName} ${e.className} ${e.textContent.slice(0, 30)}`);
  }
  return bad;
})()
"""
"""Texts with less contrast to what is behind them than WCAG 2 asks for (AA)."""
UNNAMED = """
[...document.querySelectorAll('button, input, select, [role=img], pre[tabindex]')]
  .filter(e => e.offsetParent !== null)
  .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length)))
  .map(e => e.outerHTML)
"""
"""What can be used, or looked at, and has no name for a screen reader."""

CHART = """
window.chart = (name) => charts.views.find(view => view.model.name === name);
window.held = (name, by) => chart(name).model.renderers.find(each => each.name === by).data_source.data;
window.deep = (root) => [...root.querySelectorAll('*')].map(e => e.shadowRoot).filter(Boolean)
  .flatMap(shadow => [shadow, ...deep(shadow)]);
window.place = (name, by, at) => {
  const {canvas_view, frame} = chart(name), data = held(name, by);
  canvas_view.el.scrollIntoView({block: 'center'});
  const box = canvas_view.events_el.getBoundingClientRect();
  const share = by === 'sealed' ? frame.bbox.bottom - data.y[at] * frame.bbox.height : frame.bbox.vcenter;
  const y = by === 'line' ? frame.y_scale.compute(data.y[at]) : share;
  return [box.x + frame.x_scale.compute(data.x[at]), box.y + y];
};
window.tips = () => deep(document).flatMap(root => [...root.querySelectorAll('div')])
  .filter(e => e.shadowRoot === null && e.style.maxWidth === '18rem').map(e => e.innerText).join(' | ');
"""
"""What a chart holds, by its name and that of a line or of marks; where one of these is on the screen."""


@pytest.fixture(scope="module")
def exported(folder: Path) -> Path:
    path = folder / "job.html"
    command = [sys.executable, "-m", "hvd_elastic_ext.cli", "dashboard", "digits", "--export", str(path)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("The job failed with exit code 1 after 1 min 10 s at step 57: slot 0 of h3")
    return path


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture(params=["served", pytest.param("exported", marks=pytest.mark.soak)])
def tab(request: pytest.FixtureRequest, window: Tab) -> Tab:
    """The page: from its server, and as a file."""
    window.problems.clear()
    window.requests.clear()
    window.looks(width=1100, height=900, dark=False)
    found: Served | Path = request.getfixturevalue(request.param)
    window.open(found.url if isinstance(found, Served) else found.as_uri())
    window.wait("document.getElementById('sentence').textContent")
    return window


def shown(tab: Tab) -> str:
    return str(tab.js("document.getElementById('main').innerText"))


def test_a_stranger_finds_out_in_two_clicks_why_a_job_has_failed(tab: Tab) -> None:
    assert "The job failed with exit code 1" in tab.js("document.getElementById('verdict').innerText")
    assert "NOT ALL RIGHT" in tab.text()
    tab.press("main button", "cause, cost and output")
    tab.wait("document.querySelector('.detail pre').textContent.includes('nmupy')")
    told = shown(tab)
    for words in ("no module named 'nmupy'", "no step for 4.5 s, 3 steps done again", "Output of rank 2", "struck"):
        assert words in told


def test_now_tells_size_step_loss_goodput_and_cost(tab: Tab) -> None:
    tab.view("Now")
    told = shown(tab)
    for words in ("World", "Step\n57", "Loss", "Throughput", "Goodput", "%", "Process time", "Newest checkpoint"):
        assert words in told


def timeline(tab: Tab) -> None:
    """Open it, and wait for its charts."""
    tab.view("Timeline")
    tab.js("state.chosen = null, state.zoom = null, state.update()")
    tab.wait("charts.views.length === 3 && charts.views.every(view => view.has_finished())")
    tab.js(CHART)


def mouse(tab: Tab, kind: str, x: float, y: float, **more: object) -> None:
    tab.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **more)


def click(tab: Tab, name: str, by: str, at: int) -> None:
    x, y = tab.js(f"place('{name}', '{by}', {at})")
    mouse(tab, "Moved", x, y)
    for kind in ("Pressed", "Released"):
        mouse(tab, kind, x, y, button="left", clickCount=1)


def test_the_timeline_draws_world_size_throughput_and_loss_with_gaps_where_nothing_was_trained(tab: Tab) -> None:
    timeline(tab)
    assert tab.js("charts.views.map(view => view.model.name)") == ["world", "rate", "loss"]
    assert tab.js("[...new Set(held('world', 'line').y)]") == [0, 3, 2]
    lines = "['rate', 'loss'].map(name => Array.from(held(name, 'line').y))"
    assert tab.js(f"{lines}.map(y => y.filter((each, at) => isNaN(each) && !isNaN(y[at - 1])).length)") == [1, 1]
    tab.js("window.rate = held('rate', 'line')")
    found = tab.js("Array.from(rate.y, (each, at) => isNaN(each) ? [rate.x[at], rate.top[at]] : null)")
    [begin, end] = [each for each in found if each]  # the area below the line ends where the pause begins
    assert (round((end[0] - begin[0]) / 100), begin[1], end[1]) == (45, 0, 0)
    for name, words in (("world", "from 0 to 3, last 0 ranks"), ("rate", "steps/s"), ("loss", "Loss over time")):
        assert words in tab.js(f"chart('{name}').el.getAttribute('aria-label')")


def test_the_timeline_zooms_all_charts_and_the_list_and_goes_back(tab: Tab) -> None:
    timeline(tab)
    spans = "[...new Set(charts.views.map(view => view.model.x_range.end - view.model.x_range.start))]"
    rows = "document.querySelectorAll('main tbody tr').length"
    [whole], many = tab.js(spans), tab.js(rows)
    tab.press(".tools button", "Zoom in")
    tab.wait(f"Math.abs({spans}[0] - {whole} / 2) < 1")
    assert len(tab.js(spans)) == 1
    assert tab.js(rows) < many
    tab.press(".tools button", "Whole run")
    tab.wait(f"{spans}[0] === {whole} && {rows} === {many}")
    x, y = tab.js("place('loss', 'line', 10)")
    mouse(tab, "Pressed", x, y, button="left", clickCount=1)
    mouse(tab, "Moved", x + 100, y, button="left", buttons=1)
    mouse(tab, "Moved", x + 200, y, button="left", buttons=1)
    mouse(tab, "Released", x + 200, y, button="left", clickCount=1)
    tab.wait(f"{spans}[0] < {whole} / 2 && {rows} < {many} && state.zoom !== null")
    assert len(tab.js(spans)) == 1


@pytest.mark.parametrize("name", ["world", "rate", "loss"])
def test_a_mark_that_is_clicked_opens_its_cause(tab: Tab, name: str) -> None:
    timeline(tab)
    bad = tab.js(f"held('{name}', 'events').id.findIndex(id => state.parts.timeline.rows[id].kind === 'bad')")
    click(tab, name, "events", bad)
    tab.wait("document.querySelector('.detail .cause').textContent.includes('crashed')")
    assert tab.js("held('world', 'events').width.filter(each => each > 2).length") == 1
    assert tab.js("document.querySelector('tr.chosen button').getAttribute('aria-pressed')") == "true"


def test_checkpoints_are_marked_and_a_click_opens_theirs(tab: Tab) -> None:
    timeline(tab)
    assert tab.js("held('loss', 'sealed').step") == [40]
    click(tab, "loss", "sealed", 0)
    tab.wait("document.querySelector('.detail h2').textContent.includes('sealed')")


def test_all_that_a_click_on_a_chart_opens_is_in_the_list_for_the_keyboard(tab: Tab) -> None:
    timeline(tab)
    ids = set(tab.js("[...held('world', 'events').id, ...held('world', 'sealed').id]"))
    buttons = "[...document.querySelectorAll('button[data-key^=row]')]"
    assert ids <= set(tab.js(f"{buttons}.map(each => Number(each.dataset.key.slice(3)))"))
    tab.js("document.querySelector('button.kind-bad').focus()")
    for kind in ("rawKeyDown", "char", "keyUp"):
        tab.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    tab.wait("document.querySelector('.detail h2').textContent.includes('finished')")


def test_faults_alone_are_listed_if_wanted(tab: Tab) -> None:
    timeline(tab)
    tab.click("#faults")
    tab.wait("![...document.querySelectorAll('main tbody tr')].some(r => r.innerText.includes('scaled'))")
    tab.click("#faults")


def test_charts_take_the_colours_of_the_page_also_when_these_change(tab: Tab) -> None:
    timeline(tab)
    assert tab.js("chart('loss').model.background_fill_color") == "#ffffff"
    tab.looks(width=1100, height=900, dark=True)
    tab.wait("charts.views.length === 3 && chart('loss').model.background_fill_color === '#14171b'")
    assert tab.js("held('loss', 'line').y.length") > 50
    assert tab.js("document.querySelectorAll('main [role=img]').length") == 3


def test_a_tooltip_tells_values_and_events_and_reads_no_markup(tab: Tab) -> None:
    timeline(tab)
    x, y = tab.js("place('loss', 'line', 20)")
    mouse(tab, "Moved", x - 3, y)
    mouse(tab, "Moved", x, y)
    tab.wait("tips().includes('Loss: ')")
    evil = "held('world', 'events').id.findIndex(id => state.parts.timeline.rows[id].hosts.join('').includes('<'))"
    x, y = tab.js(f"place('world', 'events', {evil})")
    mouse(tab, "Moved", x - 3, y)
    mouse(tab, "Moved", x, y)
    tab.wait("tips().includes('onerror')")
    assert "<script>" in tab.js("tips()")
    assert tab.js("deep(document).flatMap(e => [...e.querySelectorAll('img, script, iframe, [onerror]')]).length") == 0
    assert "XSS" not in tab.js("document.title")
    assert tab.problems == []


def test_hosts_are_told_with_verdicts_strikes_and_stragglers(tab: Tab) -> None:
    tab.view("Hosts")
    tab.wait("document.querySelectorAll('main tbody tr').length === 3")
    told = shown(tab)
    assert "straggler: 2 s for 1 s" in told
    assert "crashed" in told
    tab.js("document.getElementById('host-filter').value = 'h2'")
    tab.js("document.getElementById('host-filter').dispatchEvent(new Event('input'))")
    tab.wait("document.querySelectorAll('main tbody tr').length === 1")


def test_of_two_hosts_the_slow_one_is_told(tab: Tab) -> None:
    tab.js("state.parts.hosts = state.parts.hosts.slice(0, 2)")
    tab.js("state.parts.hosts.forEach((host, at) => Object.assign(host, {step_s: [0.05, 0.4][at], straggler: ''}))")
    tab.view("Hosts")
    tab.wait("document.querySelectorAll('main tbody tr').length === 2")
    rows = tab.js("[...document.querySelectorAll('main tbody tr')].map(row => row.innerText)")
    assert ["straggler: 0.4 s a step, others 0.05 s" in row for row in rows] == [False, True]


def test_the_share_of_each_rank_is_shown_where_shares_follow_their_speed_and_no_column_otherwise(tab: Tab) -> None:
    tab.js("state.parts.hosts.forEach(host => Object.assign(host, {shares: []}))")
    tab.view("Hosts")
    tab.wait("document.querySelectorAll('main tbody tr').length === 3")
    assert "Share" not in shown(tab)
    tab.js("Object.assign(state.parts.hosts[0], {shares: [0.25, 0.4167]}) && 1")
    tab.view("Now")
    tab.view("Hosts")
    tab.wait("document.querySelectorAll('main tbody tr').length === 3")
    assert "Share" in shown(tab)
    assert "25.0 % 41.7 %" in " ".join(shown(tab).split())


def test_gpus_and_prices_are_shown_where_they_are_known_and_nothing_of_them_otherwise(tab: Tab) -> None:
    tab.view("Now")
    assert "GPU" not in shown(tab)
    tab.view("Hosts")
    tab.wait("document.querySelectorAll('main tbody tr').length === 3")
    assert "GPU" not in shown(tab)
    tab.js("Object.assign(state.parts.now, {gpu: 0.5, gpu_memory: 0.25, per_hour: 3.5}) && 1")
    tab.js("Object.assign(state.parts.hosts[0], {gpu: 0.75, gpu_memory: 0.125, price: 1.5}) && 1")
    tab.view("Now")
    for words in ("GPUs", "50.0 %", "busy; 25.0 % of their memory in use", "Price", "3.5", "an hour"):
        assert words in shown(tab)
    tab.view("Hosts")
    heads = tab.js("[...document.querySelectorAll('main thead th')].map(each => each.textContent)")
    cells = tab.js("[...document.querySelectorAll('main tbody tr')].map(row => [...row.cells].map(c => c.textContent))")
    assert [dict(zip(heads, row, strict=True))["GPU"] for row in cells] == ["75.0 %", "", ""]
    assert [dict(zip(heads, row, strict=True))["Price/h"] for row in cells] == ["1.5", "", ""]


def test_output_is_shown_and_searched(tab: Tab) -> None:
    tab.view("Logs")
    tab.wait("document.querySelector('main pre').textContent.includes('step 49')")
    tab.js("document.getElementById('log-search').value = 'modulenotfound'")
    tab.js("document.querySelector('form[role=search]').requestSubmit()")
    tab.wait("document.querySelectorAll('main tbody tr').length >= 2")
    tab.press("main tbody button", "rank.2/stderr")
    tab.wait("document.querySelector('main > pre').textContent.includes('nmupy')")


def test_checkpoints_tell_what_is_whole_and_how_old(tab: Tab) -> None:
    tab.view("Checkpoints")
    told = shown(tab)
    for words in ("step 40", "old", "Whole on storage", "NO", "/ck/40", "4.77 MiB", "every 1 min"):
        assert words in told


def test_autoscaling_shows_the_curve_and_the_decision(tab: Tab) -> None:
    tab.view("Autoscaling")
    tab.wait("charts.views.length === 1")
    tab.js(CHART)
    curve = tab.js("state.parts.scaling.curve")
    assert [size for size, *_ in curve] == [2, 3]
    assert tab.js("held('curve', 'sizes')") == {"x": [2, 3], "y": [speed for _, speed, _ in curve]}
    assert "Decision: 4 hosts are worth it" in shown(tab)


def test_what_the_curve_tells_is_of_hosts(tab: Tab) -> None:
    tab.view("Autoscaling")
    tab.wait("charts.views.length === 1 && charts.views[0].has_finished()")
    tab.js(CHART)
    x, y = tab.js("place('curve', 'sizes', 0)")
    y = tab.js("(({canvas_view, frame}) => canvas_view.events_el.getBoundingClientRect().y + "
               "frame.y_scale.compute(held('curve', 'sizes').y[0]))(chart('curve'))")  # fmt: skip
    mouse(tab, "Moved", x - 3, y)
    mouse(tab, "Moved", x, y)
    tab.wait("tips().includes('2 hosts')")
    assert "a host" in tab.js("tips()")
    assert "rank" not in tab.js("tips()")


def test_of_a_new_run_no_curve_zoom_or_event_of_the_one_before_is_left(tab: Tab) -> None:
    tab.view("Autoscaling")
    tab.wait("charts.views.length === 1")
    tab.js("state.zoom = [1, 2], state.chosen = 3, state.parts.scaling.curve = []")
    tab.js("state.parts.now.run = 'another', refresh(['now', 'scaling'])")
    assert tab.js("[state.zoom, state.chosen, document.querySelector('.chart').offsetHeight]") == [None, None, 0]


@pytest.mark.parametrize("width", [700, 1000])
def test_names_of_hosts_and_events_are_not_broken_within_a_word(tab: Tab, width: int) -> None:
    tab.looks(width=width, height=900, dark=False)
    tab.js("""state.parts.timeline.rows.forEach(row => Object.assign(row,
        {hosts: ['-localhost'], event: 'scale recommended', before: 2, after: 3, text: 'word '.repeat(60)}))""")
    tab.js("state.parts.hosts.forEach(host => Object.assign(host, {name: 'localhost', why: 'word '.repeat(60)}))")
    tab.js("""window.lines = () => [...document.querySelectorAll('main tbody td')]
      .filter(cell => ['Host', 'Hosts', 'Size'].includes(cell.dataset.name))
      .map(cell => { const part = document.createRange(); part.selectNodeContents(cell);
                     return new Set([...part.getClientRects()].map(each => each.top)).size; })""")
    for view in ("Timeline", "Hosts"):
        tab.view(view)
        assert set(tab.wait("lines().length && lines()")) == {1}


def views_of(tab: Tab) -> tuple[str, ...]:
    """All that the page has; the list of jobs with those of a cluster."""
    found = tuple(tab.js("[...document.querySelectorAll('nav button')].map(each => each.textContent)"))
    assert found == VIEWS["exported" if tab.js("location.protocol") == "file:" else "served"]
    tab.js(f"(window.fetch = (real => (url, ...more) => String(url).startsWith('api/cluster') ? Promise.resolve("
           f"new Response({json.dumps(json.dumps(CLUSTER))}, {{headers: {{'content-type': 'application/json'}}}})) "
           ": real(url, ...more))(window.fetch)) && 1")  # fmt: skip
    return found


def chosen(tab: Tab, view: str) -> None:
    tab.view(view)
    if view == "Jobs":
        tab.wait("document.querySelectorAll('main tbody tr').length >= 13")
    elif view != "Now":
        tab.wait("document.getElementById('main').innerText.length > 40")


def test_no_text_of_a_job_becomes_markup_and_nothing_foreign_is_loaded(tab: Tab) -> None:
    for view in views_of(tab):
        chosen(tab, view)
        if view == "Timeline":
            tab.click("button.kind-bad")
            tab.wait("document.querySelector('.detail pre').textContent.includes('onerror')")
        assert tab.js("document.querySelectorAll('main img, main script, main iframe, main [onerror]').length") == 0
    assert MARKUP in tab.js("document.getElementById('verdict').textContent")
    assert "XSS" not in tab.js("document.title")
    assert tab.problems == []
    own = {"http://127.0.0.1", "file://", "data:", "about:blank"}
    assert [url for url in tab.requests if not url.startswith(tuple(own))] == []


@pytest.mark.parametrize("dark", [False, True])
def test_every_view_fits_a_phone_has_contrast_and_names_what_one_can_use(tab: Tab, dark: bool) -> None:
    tab.looks(width=375, height=800, dark=dark)
    for view in views_of(tab):
        chosen(tab, view)
        assert tab.js("document.documentElement.scrollWidth") <= 375, view
        assert tab.js(CONTRAST) == [], view
        assert tab.js(UNNAMED) == [], view


def test_a_phone_shows_no_word_about_a_mouse(tab: Tab) -> None:
    tab.looks(width=375, height=800, dark=False)
    chosen(tab, "Timeline")
    assert "Select a line" in tab.text()
    assert "Drag" not in tab.text()
    assert "drag" not in tab.text()
    tab.looks(width=1100, height=800, dark=False)
    assert "Drag over a chart" in tab.text()


def test_views_are_reached_by_keyboard(tab: Tab) -> None:
    tab.js("document.querySelector('nav button').focus()")
    tab.js("document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}))")
    tab.wait("document.activeElement.textContent === 'Timeline' && charts.views.length === 3")


def test_a_page_without_the_token_says_what_to_open(window: Tab, served: Served) -> None:
    window.open(served.url.partition("#")[0])
    window.wait("document.getElementById('link').textContent.includes('open the whole address')")
    assert "digits" not in window.text()


def test_jobs_are_listed_and_chosen(window: Tab, served: Served) -> None:
    window.open(served.url)
    window.view("Jobs")
    window.press("main tbody button", "digits")
    window.wait("document.getElementById('title').textContent === 'digits'")
    window.wait("document.getElementById('main').innerText.includes('Goodput')")


def test_jobs_are_told_apart_without_their_colours(window: Tab, served: Served) -> None:
    window.open(served.url + "/jobs")
    window.wait("document.querySelectorAll('main tbody tr').length >= 8")
    rows = window.js("[...document.querySelectorAll('main tbody tr')].map(e => [...e.cells].map(c => c.innerText))")
    told = {name: state for name, state, *_ in rows}
    assert {name: told[name].partition(":")[0] for name in told} == {
        "digits": "✗failed with 1", "bare": "✗failed with 1", "moved": "✗failed with 1", "done": "✓done",
        "stopped": "■stopped by SIGINT", "asleep": "☾sleeps", "trains": "▶trains", EVIL: "?no launcher, and no end",
    }  # fmt: skip
    kinds = window.js("[...document.querySelectorAll('main td > span')].map(e => e.className)")
    assert len(set(kinds)) == 4


@pytest.mark.parametrize("job", ["bare", "moved"])
@pytest.mark.parametrize("exports", [False, True])
def test_output_is_offered_only_where_it_is_kept(
    window: Tab, served: Served, folder: Path, tmp_path: Path, job: str, exports: bool
) -> None:
    if exports:
        export(job_of(folder / ".hvd-elastic" / job / "journal.jsonl"), tmp_path / "job.html")
    address = (tmp_path / "job.html").as_uri() if exports else f"{served.url}/timeline/{job}"
    told = "was not kept" if job == "bare" else "not in this file" if exports else "is not here"
    for event in ("worker failed", "straggler"):
        window.open(address)
        window.view("Timeline")
        window.press("main tbody button", event)
        window.wait("!!document.querySelector('.detail .cause')")
        if event == "worker failed" or job == "bare":
            window.wait(f"document.querySelector('.detail').innerText.includes({json.dumps(told)})")
        assert window.js("[...document.querySelectorAll('.detail button')].map(e => e.textContent)") == []


def test_the_page_in_one_file_has_no_control_that_does_nothing_there(window: Tab, exported: Path) -> None:
    window.open(exported.as_uri())
    window.view("Logs")
    window.wait("document.querySelector('main pre').textContent.includes('step 49')")
    named = window.js("[...document.querySelectorAll('main label, main .tools button')].map(e => e.textContent)")
    assert [each for each in named if each in ("Part", "Earlier", "follow")] == []
    files = "[...document.querySelectorAll('#log-file option')].map(e => e.value)"
    assert window.js(files) == ["rank.0/stderr", "rank.2/stderr"]
    assert "The ends of 2 of 2 files of" in shown(window)
    window.view("Hosts")
    assert "" not in window.js("[...document.querySelectorAll('main thead th')].map(e => e.textContent)")


def test_the_curve_and_the_decision_are_of_hosts_and_name_their_unit(tab: Tab) -> None:
    tab.view("Autoscaling")
    told = shown(tab)
    for words in ("Throughput (steps of one host/s)", "Each host keeps its batch (batch=host)", "A further host added"):
        assert words in told
    assert tab.js("[...document.querySelectorAll('main table')][0].querySelector('th').textContent") == "Hosts"


def test_a_change_is_confirmed_before_it_is_sent(window: Tab, served: Served) -> None:
    window.open(served.url)
    window.view("Hosts")
    window.click("button[data-key='block h1']")
    window.wait("document.getElementById('dialog').open")
    assert "Block h1?" in window.js("document.getElementById('dialog').innerText")
    sent = len([url for url in window.requests if "/api/act" in url])
    window.press("dialog button", "Cancel")
    window.wait("!document.getElementById('dialog').open")
    assert len([url for url in window.requests if "/api/act" in url]) == sent == 0
    window.click("button[data-key='block h1']")
    window.click("#confirm")
    window.wait("document.querySelector('main [role=status]').textContent.length > 5")


def test_what_comes_is_added_to_the_charts_that_are_there_and_leaves_the_zoom(
    window: Tab, served: Served, folder: Path
) -> None:
    journal = JournalMaker().add("started", run="r").resized("start", 2, hosts={"a": 2}, added=["a"]).steps(40, every=1)
    path = write_job(folder, "growing", journal)
    window.looks(width=1100, height=900, dark=False)
    window.open(f"{served.url}/timeline/growing")
    window.wait("charts.views.length === 3")
    window.js(CHART)
    window.press(".tools button", "Zoom in")
    source = "chart('loss').model.renderers[0].data_source"
    zoom = window.js(f"window.before = charts.views[2], window.source = {source}, state.zoom")
    assert window.js("[chart('loss').model.x_range.start, chart('loss').model.x_range.end]") == zoom
    count, written = window.js("held('loss', 'line').y.length"), len(journal.lines)
    journal.add("slept", after=1, reason="no hosts").add("woke", after=60)
    journal.resized("start", 1, hosts={"a": 1}, added=["a"], generation=1).steps(20, every=1, generation=1)
    with path.open("a") as file:
        file.write("".join(line + "\n" for line in journal.lines[written:]))
    window.wait(f"held('loss', 'line').y.length === {count} + 21")  # 20 steps and a gap
    assert window.js("Array.from(held('loss', 'line').y).filter(Number.isNaN).length") == 1
    assert window.js(f"charts.views[2] === window.before && window.source === {source}")
    assert window.js("[chart('loss').model.x_range.start, chart('loss').model.x_range.end]") == zoom


def test_charts_are_loaded_after_the_first_sentence_and_once(window: Tab, served: Served) -> None:
    window.requests.clear()
    window.open(served.url)
    window.wait("document.getElementById('sentence').textContent")
    assert not [url for url in window.requests if "bokeh" in url]
    for view in ("Timeline", "Autoscaling", "Timeline"):
        window.view(view)
        window.wait(f"charts.views.length === {1 if view == 'Autoscaling' else 3}")
    assert len([url for url in window.requests if "bokeh" in url]) == 2
