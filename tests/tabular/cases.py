"""Hostile names and what a page must hold."""

import html
import json
import re
from html.parser import HTMLParser

from tests.browser import browse

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


class Reader(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


def check_page(text):
    """Self-contained, no script, unique ids."""
    reader = Reader(text)
    for tag, attributes in reader.tags:
        assert tag not in ("script", "iframe", "object", "embed", "base", "img")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert not re.match(r"(?i)(https?:)?//", attributes.get(name) or "")
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids)) and "url(http" not in text and "@import" not in text
    return reader


MEASURE = """<script>window.addEventListener("load", function () {
  var box = function (node) { var b = node.getBoundingClientRect(); return [b.left, b.right]; };
  parent.postMessage({ width: window.innerWidth, scroll: document.documentElement.scrollWidth,
    figures: Array.from(document.querySelectorAll("figure svg")).filter(
      function (node) { return node.getClientRects().length; }).map(box) }, "*");
});</script>"""


def measured(page, tmp_path, width):
    """The page as a browser lays it out; the script that measures goes into a copy without the content policy."""
    assert "CONSOLE" not in browse(page, tmp_path, width).stderr
    copy = tmp_path / "measured.html"
    copy.write_text(re.sub(r"<meta http-equiv=[^>]*>", MEASURE, page.read_text(encoding="utf-8"), count=1))
    done = browse(copy, tmp_path, width)
    return json.loads(html.unescape(re.search(r'<pre id="measured">(.+?)</pre>', done.stdout, re.S)[1]))
