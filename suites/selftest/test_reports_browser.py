"""In a real browser, the pages draw, make no network request, and can be used by keyboard."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.waiting import await_until
from reports.allure import ALLURE
from reports.command import report
from suites.selftest.browser import CTRL, ENTER, ESCAPE, LACKING, Browser, browser
from suites.selftest.run_folders import (
    RUN_ID,
    nights,
    write_long_run_folder,
    write_run_folder,
    write_torn_run_folder,
)

pytestmark = pytest.mark.skipif(bool(LACKING), reason=LACKING)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs_dir = tmp_path_factory.mktemp("runs")
    write_run_folder(runs_dir)
    write_run_folder(runs_dir, "2", case="kip-112/other[zk]", outcome={"verdict": "valid", "reason": ""})
    write_long_run_folder(runs_dir, "long")
    earlier = [*nights("kip-112/other[zk]", "valid invalid error unknown"), *nights("kip-112/third[zk]", "valid valid")]
    (runs_dir / "ledger.jsonl").write_text("".join(json.dumps(entry.to_json()) + "\n" for entry in earlier))
    arguments = [str(runs_dir), "--no-allure", "--baseline", str(runs_dir)]
    CliRunner().invoke(report, arguments, catch_exceptions=False)
    return runs_dir / "report"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as window:
        yield window


@pytest.fixture
def case(window: Browser, pages: Path) -> Browser:
    window.resize(1200, 900)
    window.open(pages / "cases" / f"{RUN_ID}.html")
    return window


def test_the_timeline_is_drawn(case: Browser) -> None:
    assert case.run("return document.documentElement.dataset.drawn") == "yes"
    assert case.complaints() == []
    assert case.run("return document.querySelectorAll('.uplot canvas').length") == 2
    spans = case.run("return [...document.querySelectorAll('.span')].filter(s => s.offsetWidth > 0).length")
    assert spans > 10
    # The fault lasts from 2 to 7 s of 9.5 s on the axis.
    left, right = case.run(
        "const a = document.querySelector('.area.over').getBoundingClientRect(),"
        " s = document.querySelector('.shade').getBoundingClientRect();"
        " return [(s.left - a.left) / a.width, (s.right - a.left) / a.width]"
    )
    assert (left, right) == (pytest.approx(2 / 9.5, abs=0.005), pytest.approx(7 / 9.5, abs=0.005))


def test_thousands_of_points_are_drawn_and_can_be_zoomed_into(window: Browser, pages: Path) -> None:
    window.resize(1200, 900)
    window.open(pages / "cases" / "long.html")
    assert window.run("return document.documentElement.dataset.drawn") == "yes"
    data = "JSON.parse(document.getElementById('timeline-data').textContent)"
    told = f"const data = {data}; return [data.x.length, data.marks.length]"
    bins, marks = window.run(told)
    assert bins > 5000
    assert marks > 200
    assert window.run("return document.querySelectorAll('.span').length") > 800
    ticks = "return [...document.querySelectorAll('.tick')].map(t => parseFloat(t.textContent))"
    whole = window.run(ticks)
    window.run("document.getElementById('timeline').focus()")
    window.press("+" * 8)
    near = window.run(ticks)
    assert near[-1] - near[0] < (whole[-1] - whole[0]) / 50
    assert window.complaints() == []


def test_by_keyboard_to_a_fault_an_anomaly_and_its_story(case: Browser) -> None:
    case.run("document.getElementById('timeline').focus()")
    case.press("n" + ENTER)
    assert case.run("return document.querySelector('#drawer h2').textContent").startswith("chmod_000")
    case.press(ESCAPE)
    assert case.run("return document.getElementById('drawer').hidden")
    case.press("n" + ENTER)
    assert case.run("return document.querySelector('#drawer h2').textContent") == "p0 #30"
    assert "acked and gone" in case.run("return document.getElementById('drawer').textContent")
    case.press(ESCAPE)
    assert "anomaly" in case.run("return document.activeElement.className")


def test_the_stories_of_a_torn_transaction_are_together(window: Browser, tmp_path: Path) -> None:
    folder = write_torn_run_folder(tmp_path)
    CliRunner().invoke(report, [str(folder), "--no-allure"], catch_exceptions=False)
    window.resize(1200, 900)
    window.open(folder / "report" / "cases" / f"{RUN_ID}.html")
    window.run("document.querySelector('.mark.anomaly').click()")
    heads = window.run("return [...document.querySelectorAll('#drawer h2')].map(h => h.textContent)")
    assert heads == ["partial_transaction: transaction p0-t1", "p0 #4", "p0 #6"]
    told = window.run("return document.getElementById('drawer').textContent")
    assert told.index("4 tells") < told.index("6 tells")
    assert window.complaints() == []


def test_zoom_and_back(case: Browser) -> None:
    ticks = "return [...document.querySelectorAll('.tick')].map(t => parseFloat(t.textContent))"
    case.run("document.getElementById('timeline').focus()")
    whole = case.run(ticks)
    case.press("+++")
    near = case.run(ticks)
    assert near[-1] - near[0] < (whole[-1] - whole[0]) / 3
    case.press("0")
    assert case.run(ticks) == whole


def test_zoom_and_back_by_mouse(case: Browser) -> None:
    """A drag zooms to the span under it, a double click goes back, and Ctrl with the wheel zooms."""
    case.run("document.getElementById('timeline').scrollIntoView()")
    area = "const a = document.querySelector('.area.over').getBoundingClientRect(); return [a.left, a.width, a.top]"
    left, width, top = case.run(area)
    y = top + 5

    def await_span(wanted: Callable[[float], bool]) -> float:
        """Wait until so many seconds are shown."""
        ticks = "return [...document.querySelectorAll('.tick')].map(t => parseFloat(t.textContent))"
        shown = await_until(
            lambda: case.run(ticks), lambda now: wanted(now[-1] - now[0]), timeout_s=10, what="the axis to be redrawn"
        )
        return float(shown[-1] - shown[0])

    whole = await_span(lambda _: True)
    case.point(("move", left + width * 0.4, y), ("down", left + width * 0.4, y), ("up", left + width * 0.6, y))
    await_span(lambda span: 0 < span <= whole * 0.25)
    case.point(*[(what, left + width / 2, y) for what in ("down", "up", "down", "up")])
    await_span(lambda span: span == whole)
    case.turn_wheel(left + width / 2, y, -120, holding=CTRL)
    await_span(lambda span: span < whole)


def test_light_and_dark_by_choice(case: Browser) -> None:
    case.prefer("light")
    back = "return getComputedStyle(document.body).backgroundColor"
    light = case.run(back)
    for other in (True, False):
        case.run("document.getElementById('theme').click()")
        assert (case.run(back) != light) is other
    assert case.complaints() == []


def test_a_command_copies_itself(case: Browser) -> None:
    """A click copies the command, or selects it where pages from disk may not write to the clipboard."""
    case.run("document.querySelector('.command button').click()")
    told = "return [document.querySelector('.command button').textContent, getSelection().toString()]"
    done = await_until(
        lambda: case.run(told), lambda told: told[0] in ("copied", "selected"), timeout_s=10, what="a word"
    )
    word, selected = done
    command = case.run("return document.querySelector('.command code').textContent")
    assert command.startswith("jbod repro ")
    assert word == "copied" or selected == command


def test_states_are_text_and_the_cursor_moves_by_key(case: Browser) -> None:
    """The states are not only in titles, which need a mouse."""
    shown = "return [...document.querySelectorAll('#happenings tr')].filter(r => !r.hidden).map(r => r.textContent)"
    choose = "const l = document.getElementById('levels'); l.value = '{}'; l.dispatchEvent(new Event('change'))"
    usual = case.run(shown)
    case.run(choose.format("state"))
    states = case.run(shown)
    case.run(choose.format("all"))
    assert any("orders-0" in line and "until 8.200 s" in line for line in states), states
    assert usual == case.run(shown)
    assert not {*states} & {*usual}
    at = "return parseFloat(document.querySelector('.cursor b').textContent)"
    key = "new KeyboardEvent('keydown', {key: 'ArrowRight', shiftKey: true})"
    press = f"document.getElementById('timeline').dispatchEvent({key})"
    case.run(press)
    first = case.run(at)
    case.run(press)
    assert case.run(at) == pytest.approx(first + 0.095, abs=0.002)


def test_what_never_changed_is_folded_and_can_be_unfolded(case: Browser) -> None:
    shown = "return [...document.querySelectorAll('.row')].filter(r => r.offsetHeight > 0).length"
    before = case.run(shown)
    case.run("document.querySelectorAll('.group button').forEach(b => b.click())")
    assert case.run(shown) == before + 4


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 900, 1600])
def test_every_page_fits_and_can_be_read(window: Browser, pages: Path, scheme: str, width: int) -> None:
    window.prefer(scheme)
    window.resize(width, 900)
    for page in ("index.html", "qualification.html", f"cases/{RUN_ID}.html"):
        window.open(pages / page)
        assert window.run("return document.documentElement.scrollWidth - innerWidth") <= 0
        assert window.run(_CONTRAST) >= 4.5
        assert window.complaints() == []


# The lowest contrast (WCAG 2's ratio) between important text and the page. Colours may be in the form color(srgb …).
_CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const light = (colour) => {
  canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = light(getComputedStyle(document.body).backgroundColor);
const texts = [...document.querySelectorAll("h1, h2, p, td, th, a, .answer strong, .verdict, .dim")];
return Math.min(...texts.map((each) => {
  const [a, b] = [light(getComputedStyle(each).color), behind].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}));
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of 200 cases, a tenth of which is not valid."""
    runs_dir = tmp_path_factory.mktemp("many")
    for number in range(200):
        verdict = ("invalid", "unknown", "error")[number // 10 % 3] if number % 10 == 0 else "valid"
        outcome = {"verdict": verdict, "reason": f"because of {number}"}
        write_run_folder(runs_dir, f"{number:03}", case=f"kip-112/many[zk-{number:03}]", outcome=outcome)
    CliRunner().invoke(report, [str(runs_dir), "--baseline", str(runs_dir)], catch_exceptions=False)
    return runs_dir / "report"


_ROWS = "return document.querySelectorAll('#table .case').length"
_RESULTS = r"return +(/Results\s*(\d+)/.exec(document.body.innerText) || [0, 0])[1]"


@pytest.mark.parametrize(
    ("page", "cases"),
    [("index.html", _ROWS), ("qualification.html", _ROWS), (ALLURE, _RESULTS)],
    ids=["index", "qualification", "allure"],
)
def test_200_cases_are_one_page(
    window: Browser, many: Path, page: str, cases: str, request: pytest.FixtureRequest
) -> None:
    """junit.xml gets the time to open the page, also as a multiple of an empty page's; no limit is checked."""
    if not (many / page).exists():
        pytest.skip("no Allure here; the reason is in test_reports_allure.py")
    (many / "empty.html").write_text("<!DOCTYPE html><title>empty</title>")
    empty_s = opened_s(window, many / "empty.html", "return 200")
    took_s = opened_s(window, many / page, cases)
    assert window.complaints() == []
    told = {"opened_s": f"{took_s:.2f}", "times_an_empty_page": f"{took_s / empty_s:.1f}"}
    request.node.user_properties.extend(told.items())


def opened_s(window: Browser, page: Path, cases: str) -> float:
    """Seconds until a page shows 200 cases."""
    began = time.monotonic()
    window.open(page)
    await_until(lambda: window.run(cases), until=lambda count: count == 200, timeout_s=120, what=f"200 cases in {page}")
    return time.monotonic() - began


def test_the_index_is_sieved(window: Browser, pages: Path) -> None:
    window.open(pages / "index.html")
    shown = "return [...document.querySelectorAll('#table .case')].filter(c => !c.hidden).length"
    assert window.run(shown) == 2
    window.run("document.querySelector('.sieve.invalid').click()")
    assert window.run(shown) == 1
    window.run("const f = document.getElementById('filter'); f.value = 'other'; f.dispatchEvent(new Event('input'))")
    assert window.run(shown) == 0
