"""The documentation builds without a warning, and its pages ask for nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What a browser fetches by itself; a link that a reader may follow is none of it.
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?([^"'\s>]+)|<link[^>]*\shref=["']?([^"'\s>]+)|url\(["']?([^"')]+)"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_pages_ask_for_nothing_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 17
    for page in pages:
        found = [next(filter(None, groups)) for groups in FETCHED.findall(page.read_text(encoding="utf-8"))]
        assert not [each for each in found if re.match(r"(https?:)?//", each)], page


def test_the_reference_names_every_public_class_and_function(site: Path) -> None:
    import gradrerank

    reference = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    told = set(re.findall(r'<h[2-4] id="([\w.]+)"', reference))
    missing = [name for name in gradrerank.__all__ if not any(each.endswith(f".{name}") for each in told)]
    assert not missing


def test_roles_and_sections_of_docstrings_are_rendered(site: Path) -> None:
    for page in (site / "api").glob("*.html"):
        text = re.sub(r"<pre.*?</pre>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.search(r":(class|meth|func|mod|data):", text), page
        assert "&gt;&gt;&gt;" not in re.sub(
            r"<div class=\"doctest.*?</div>|<code.*?</code>", "", text, flags=re.DOTALL
        ), page
