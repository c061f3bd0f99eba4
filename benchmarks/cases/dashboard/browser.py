"""The page of a job with 500 hosts and 1,000,000 lines in Debian's Chromium, timed by the browser's clock."""

from __future__ import annotations

from typing import Final

from benchmarks.cases.dashboard.server import served, write_journal
from benchmarks.model import Case, Figure, Timing, Trial, Values
from hvd_elastic_ext.core.journal import FILE, FOLDERS
from tests.support.browser import CHROMIUM, browser

PAINT: Final = "address to the first paint in the browser"
WORD: Final = "address to the page's first word of the job in the browser"
WHOLE: Final = "address to the whole job in the browser"

FIRST_PAINT: Final = "performance.getEntriesByType('paint').find(e => e.name === 'first-contentful-paint').startTime"
WATCH: Final = """
(() => {
  window.seen = {};
  const told = () => { try { return state.parts.now; } catch { return null; } };
  const look = () => {
    const sentence = document.getElementById('sentence');
    if (sentence && sentence.textContent) window.seen.word ??= performance.now();
    if (window.seen.word && told()) window.seen.whole = performance.now();
    if (!window.seen.whole) requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})()
"""
"""Milliseconds from the start of the navigation to the first frame that shows something."""


def measure(trial: Trial) -> Values:
    """Open one page of a server that has not read the journal yet."""
    home = trial.folder / FOLDERS / "large"
    home.mkdir(parents=True)
    write_journal(home / FILE, trial.pick(1_000_000, 20_000))
    with browser(trial.folder) as tab, served(trial.folder, "large") as (_, url):
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        tab.open(url)
        whole = tab.wait("window.seen.whole")
        word = tab.js("window.seen.word")
        paint = tab.js(FIRST_PAINT)
    return {PAINT: [Timing(paint / 1000)], WORD: [Timing(word / 1000)], WHOLE: [Timing(whole / 1000)]}


def missing() -> str | None:
    """Return what this machine lacks; None if nothing."""
    return None if CHROMIUM else "needs chromium (Debian: chromium)"


CASE: Final = Case(
    name="dashboard-browser",
    about="the page of a job with 500 hosts and 1,000,000 lines, in Chromium",
    figures=(Figure(PAINT, bar_s=1.0), Figure(WORD, bar_s=1.0), Figure(WHOLE)),
    measure=measure,
    repeats=3,
    sides=("ours",),
    missing=missing,
)
