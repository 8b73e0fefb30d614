"""Results as HTML: well-formed, shaded by sign, and harmless whatever the documents hold; also in a real browser."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradrerank.citing import AnswerSentence, Citation, Citations
from gradrerank.documents import (
    Document,
    DroppedDocument,
    Provenance,
    RankedDocument,
    RerankResult,
    SourceReport,
    SpanUtility,
)
from gradrerank.lm.pieces import sentence_ranges
from gradrerank.notebook import Mark, marked, safe, shade

SCRIPT = '<script>window.hacked = true</script><img src=x onerror="window.hacked = true">'
ALLOWED = {
    "div",
    "table",
    "colgroup",
    "col",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "b",
    "i",
    "br",
    "bdi",
    "span",
    "small",
}
ALLOWED |= {"details", "summary", "ul", "li"}
VOID = {"col", "br"}


class Page(HTMLParser):
    """Tags, attributes and text of a page; complains of what is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def styles(self, tag: str) -> list[str]:
        return [attributes.get("style") or "" for name, attributes in self.tags if name == tag]


def ranked(text: str, score: float, rank: int, **fields: Any) -> RankedDocument:
    ranges = sentence_ranges(text)
    spans = tuple(SpanUtility(a, b, score / (i + 1) * (-1) ** i) for i, (a, b) in enumerate(ranges))
    values = {"id": f"d{rank}", "title": None, "metadata": {}, "provenance": (Provenance("wiki", 3),), "spans": spans}
    return RankedDocument(text=text, score=score, rank=rank, **{**values, **fields})


def hostile_result() -> RerankResult:
    both = (Provenance(f"wiki{SCRIPT}", 2), Provenance("web", 7))
    documents = (
        ranked(f"{SCRIPT} is text. The ferry leaves at nine. {'x' * 900}", 0.4, 1, title=SCRIPT, provenance=both),
        ranked("متى تغادر العبارة؟ \u202egnp.exe \x1b[31m \x00", 0.01, 2, id=SCRIPT, truncated=True, kept=(0, 9)),
        ranked("Bad advice.", -0.3, 3),
    )
    dropped = (
        DroppedDocument(Document(SCRIPT), (Provenance("web", 4),), "top_n", -0.4),
        DroppedDocument(Document("  ", id=SCRIPT), (Provenance(SCRIPT, 5),), "blank"),
        DroppedDocument(Document("x"), (Provenance("web", 6),), "max_candidates"),
    )
    sources = (SourceReport(SCRIPT, True, 0.5, 0.6, 9, 2), SourceReport("web" * 60, False, -0.1, 0.1, 2, 0))
    return RerankResult(
        f"When? {SCRIPT}", documents, sources, dropped, scorer="gates", target="draft", target_text=SCRIPT
    )


def hostile_citations() -> Citations:
    cited = Citation(1, SCRIPT, 0, len(SCRIPT), 0.4, SCRIPT, SCRIPT, (SCRIPT,))
    sentences = (AnswerSentence(SCRIPT, 0, len(SCRIPT), ((1, 0.4),)), AnswerSentence("So?", len(SCRIPT), 99, ()))
    return Citations(SCRIPT, f"{SCRIPT} So?", (cited,), sentences)


PAGES = {
    "result": lambda: hostile_result()._repr_html_(),
    "explanation": lambda: hostile_result().explain()._repr_html_(),
    "citations": lambda: hostile_citations()._repr_html_(),
    "nothing": lambda: RerankResult(SCRIPT, (), ())._repr_html_(),
    "no citation": lambda: Citations(SCRIPT, SCRIPT, (), ())._repr_html_(),
}


@pytest.mark.parametrize("name", PAGES)
def test_what_a_document_holds_stays_text(name: str) -> None:
    page = Page(PAGES[name]())
    assert {tag for tag, _ in page.tags} <= ALLOWED
    assert all(not key.startswith("on") and key not in ("src", "href") for _, a in page.tags for key in a)
    assert SCRIPT in page.text
    page.text.encode()


def test_texts_come_back_whole() -> None:
    result = hostile_result()
    page = Page(result._repr_html_())
    joined = re.sub(r"\s[+-]\d\.\d{3}|\d+ more characters|\s", "", page.text)
    for document in (result[0], result[2]):
        assert re.sub(r"\s", "", document.text) in joined


def test_what_is_shown_of_a_result() -> None:
    page = Page(hostile_result()._repr_html_())
    for part in ("+0.400", "-0.300", "web #7", "rank before", "left out", "positive helps", "read to character 9 of"):
        assert part in page.text
    assert "Dropped: 1 blank, 1 never read, beyond max_candidates, 1 beyond top_n" in page.text
    assert "[U+202E]gnp.exe [U+001B][31m [U+0000]" in page.text and "\u202e" not in page.text


def test_sign_is_told_by_colour_by_line_and_by_number() -> None:
    page = Page(marked("Good. Bad. So.", [Mark(0, 6, 0.5), Mark(6, 11, -0.5), Mark(11, 14, 0.001)], 0.5))
    good, bad = page.styles("span")
    assert "rgba(33,102,172,0.50)" in good and "2px solid" in good
    assert "rgba(230,130,20,0.50)" in bad and "2px dotted" in bad
    assert page.text == "Good.\xa0+0.500 Bad.\xa0-0.500 So."
    assert shade(0.0, 1.0) == shade(0.0, 0.0) == "background:transparent"
    assert shade(0.5, 1.0) == "background:rgba(33,102,172,0.28)"


def test_what_was_measured_of_sources_is_shown_and_nothing_else() -> None:
    def shown(*sources: SourceReport) -> str:
        return Page(RerankResult("q", (), sources)._repr_html_()).text

    plain = shown(SourceReport("wiki", True, None, None, 3, 1))
    assert not any(name in plain for name in ("gain", "relevance", "utility", "share", "agreement"))
    full = shown(SourceReport("wiki", True, 0.5, 0.6, 3, 1, utility=-0.2, share=0.25, agreement={"web": 0.5}))
    assert all(part in full for part in ("gain", "+0.600", "utility", "-0.200", "25%", "agreement", "web +0.50"))


@given(st.text(max_size=60))
def test_any_text_is_harmless_and_readable(text: str) -> None:
    shown = safe(text)
    assert not re.search(
        r"[<>\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown
    )
    plain = re.sub(r"\[U\+([0-9A-F]{4,6})\]", lambda m: chr(int(m[1], 16)), html.unescape(shown))
    assert plain == text


@given(st.text(alphabet="ab <&. ", min_size=1, max_size=30), st.lists(st.integers(0, 30), max_size=6), st.data())
def test_marks_lose_no_character(text: str, cuts: list[int], data: st.DataObject) -> None:
    edges = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    utilities = data.draw(st.lists(st.floats(-1, 1), min_size=len(edges) - 1, max_size=len(edges) - 1))
    marks = [Mark(a, b, u) for a, b, u in zip(edges, edges[1:], utilities, strict=False)]
    shown = Page(marked(text, marks, max(map(abs, utilities), default=0.0))).text
    assert re.sub(r"\xa0[+-]?\d\.\d+(e[+-]\d+)?", "", shown) == text


# -- in a browser ---------------------------------------------------------------------------------------


def _browser() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
    given = os.environ.get("CHROME_BIN")
    return given if given and Path(given).exists() else next(filter(None, map(shutil.which, names)), None)


# What only a browser knows, written into the page for the test to read.
_MEASURE = """<script>
const cells = [...document.querySelectorAll('.gradrerank td, .gradrerank span')];
document.querySelectorAll('details').forEach(d => d.open = true);
const seen = {
  hacked: window.hacked === true,
  width: window.innerWidth,
  overflow: document.documentElement.scrollWidth,
  widest: Math.max(...[...document.querySelectorAll('.gradrerank *')].map(e => e.getBoundingClientRect().right)),
  backgrounds: [...new Set(cells.map(e => getComputedStyle(e).backgroundColor))],
  scripts: document.scripts.length,
  images: document.images.length,
};
const out = document.createElement('pre');
out.id = 'seen'; out.textContent = JSON.stringify(seen); out.style.display = 'none';
document.body.append(out);
</script>"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a browser of 800 pixels sees of all pages together."""
    browser = _browser()
    if browser is None:
        pytest.skip("needs Chromium or Chrome; none was found (CHROME_BIN may name one)")
    folder = tmp_path_factory.mktemp("browser")
    page = folder / "page.html"
    parts = "".join(make() for make in PAGES.values())
    page.write_text(f"<!doctype html><meta charset='utf-8'><body style='margin:8px'>{parts}{_MEASURE}", "utf-8")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=800,1200",
        f"--user-data-dir={folder / 'home'}",
    ]
    done = subprocess.run([browser, *flags, "--dump-dom", page.as_uri()], capture_output=True, timeout=120, check=True)
    found = re.search(r'<pre id="seen"[^>]*>(.*?)</pre>', done.stdout.decode("utf-8"), re.DOTALL)
    assert found is not None, done.stderr[-500:]
    yield json.loads(html.unescape(found[1]))


def test_no_script_of_a_document_runs_in_a_browser(seen: dict[str, Any]) -> None:
    assert not seen["hacked"] and seen["scripts"] == 1 and seen["images"] == 0


def test_nothing_runs_over_at_800_pixels(seen: dict[str, Any]) -> None:
    assert seen["width"] == 800
    assert seen["overflow"] <= 800 and seen["widest"] <= 800


def test_shading_is_there_in_a_browser(seen: dict[str, Any]) -> None:
    assert {"rgba(33, 102, 172, 0.5)", "rgba(230, 130, 20, 0.39)"} <= set(seen["backgrounds"])
