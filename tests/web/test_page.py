"""The page in a real browser: nothing is fetched, nothing fails, and everything on it works."""

import csv
import io

import pytest

from scripts.stages.web import PROJECT, links_of
from tests.samples import planned_rows
from tests.web.conftest import DESKTOP, HTML, PHONE, make_page

CONDITION = """document.querySelector('#explorer .dtsb-add').click();
    for (const [part, text] of [['data', arguments[0]], ['condition', 'Equals'], ['value', arguments[1]]]) {
        const options = [...document.querySelectorAll(`#explorer .dtsb-${part} option`)];
        const option = options.findLast((each) => each.textContent === text);
        option.selected = true;
        option.parentElement.dispatchEvent(new Event('change', {bubbles: true}));
    }"""
LOGARITHMIC = "return document.querySelector('#explorer [name=logY]').checked"


def count(browser):
    """How many rows the explorer says that it shows."""
    return int(browser.text("#explorer .count").split()[0])


def test_the_contents_follow_what_is_read(page, browser):
    browser.open(page)
    current = "return document.querySelector('#contents a[aria-current]').textContent"
    assert browser.texts("#contents a") == ["1 First", "2 Second", "2.1 How long?", "Explorer"]
    assert browser.run(current) == "1 First"
    browser.run("document.querySelector('#tab-steps').scrollIntoView()")
    browser.wait(f"{current} === '2.1 How long?'")
    browser.click("#contents a", 3)
    browser.wait(f"{current} === 'Explorer'")
    assert browser.run("return location.hash") == "#explorer"


def test_a_figure_opens_large(page, browser):
    browser.open(page)
    browser.click("#fig-lines img")
    browser.wait("return document.querySelector('#viewer[open] img')?.naturalWidth")
    sizes = "return ['#fig-lines img', '#viewer img'].map((each) => document.querySelector(each).clientWidth)"
    small, large = browser.run(sizes)
    assert large > small
    assert "Lines." in browser.text("#viewer figcaption")
    browser.click("#viewer form button")
    assert not browser.run("return document.querySelector('#viewer').open")


def test_a_tables_numbers_lead_to_rows(page, browser):
    browser.open(page)
    assert browser.text("#tab-steps tbody td:nth-child(2)") == HTML
    browser.click("#tab-steps tbody td:nth-child(2)", 4)
    browser.wait("return document.querySelector('#detail[open] .candidates button')")
    browser.click("#detail .candidates button")
    browser.wait("return document.querySelector('#detail .command')")
    assert browser.text("#detail h3") == "end_to_end: step"


def test_a_number_leads_only_to_rows_of_its_unit_and_metric(page, browser):
    browser.open(page)
    candidates = "return document.querySelector('#detail[open] .content')?.textContent"
    shown = []
    for number in range(4):
        browser.click("#tab-alike td.number", number)
        browser.wait(f"{candidates}?.includes(arguments[0])", browser.texts("#tab-alike td.number")[number])
        shown.append({text.split(",")[0] for text in browser.texts("#detail .candidates strong")})
        browser.click("#detail form button")
    assert shown == [
        {"build"},
        set(),
        set(),
        {"step"},
    ]  # in ms what was recorded in s; a hundred of it; a build is no step


def test_arrow_keys_reach_the_numbers_and_enter_looks_one_up(page, browser):
    browser.open(page)
    browser.run("document.querySelector('#tab-alike .scroll').focus()")
    focused = []
    for key in ("Down", "Right", "Down", "Left", "Up"):
        browser.press(key)
        focused.append(browser.run("return document.activeElement.textContent"))
    first, second = browser.texts("#tab-alike td.number")[:2], browser.texts("#tab-alike td.number")[2:]
    assert focused == [first[0], first[1], second[1], second[0], first[0]]
    browser.press("Enter")
    browser.wait("return document.querySelector('#detail[open] h3')")


def test_headings_figures_and_tables_have_links_to_themselves(page, browser):
    browser.open(page)
    links = browser.run("return [...document.querySelectorAll('article .anchor')].map((each) => each.hash)")
    assert links == [
        "#sec-first",
        "#fig-wide",
        "#tab-alike",
        "#fig-lines",
        "#sec-second",
        "#sec-end_to_end",
        "#tab-steps",
    ]
    assert all(browser.run("return document.querySelector(arguments[0]) !== null", link) for link in links)
    assert browser.texts("#bar .jump a") == [*links_of(PROJECT), "Explorer"]


def test_the_bar_links_what_the_project_names(tmp_path):
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\nname = "mine"\n')
    assert links_of(project) == {"PDF": "writeup.pdf"}
    urls = {"Repository": "https://example.org/code", "Documentation": "https://example.org/docs"}
    lines = [f'{name} = "{address}"' for name, address in urls.items()]
    project.write_text("\n".join(["[project]", 'name = "mine"', "[project.urls]", *lines]))
    assert links_of(project) == {"PDF": "writeup.pdf"} | urls


def test_what_only_the_page_shows_is_numbered_apart(page, browser):
    browser.open(page)
    captions, references = (
        [text.replace("\xa0", " ") for text in browser.texts(what)] for what in ("figcaption", "p > a:not(.explore)")
    )
    assert captions == ["Figure W1: Wide.", "Table W1: Alike.", "Figure 1: Lines.", "Table 1: Steps."]
    assert references == ["Figure W1", "Table W1", "Figure 1", "Table 1"]


def test_the_explorer_filters_and_saves_and_its_address_shows_the_same_again(page, browser):
    browser.open(page)
    browser.to_explorer()
    assert browser.texts("#explorer [name=experiment] option") == ["end_to_end", "flash"]
    browser.choose("experiment", "flash")
    browser.wait("return document.querySelector('#explorer .filters summary').textContent.includes('causal')")
    assert not browser.run(LOGARITHMIC)
    browser.click("#explorer .dtsb-clearAll")
    everything = count(browser)
    browser.run(CONDITION, "implementation", HTML)
    browser.wait(
        "return document.querySelector('#explorer .count').textContent.split(' ')[0] < arguments[0]", everything
    )
    shown = browser.texts("#explorer :is(summary, .count)")
    assert shown[0] == f"Filters: implementation = {HTML}"
    browser.click("#explorer .buttons-csv")
    rows = list(csv.DictReader(io.StringIO(browser.saved("flash.csv"))))
    assert {row["implementation"] for row in rows} == {HTML}
    assert len(rows) == count(browser)
    assert all(row["samples"] and row["revisions"] for row in rows)
    browser.choose("y", "std")
    browser.driver.refresh()
    browser.wait("return document.querySelector('#explorer .chart svg')?.textContent.includes(', std')")
    assert browser.texts("#explorer :is(summary, .count)") == shown


def test_a_row_shows_all_that_was_recorded_the_command_that_repeats_it_and_its_address(page, browser):
    browser.open(page)
    browser.to_explorer()
    browser.click("#explorer .rows tbody tr")
    details = browser.wait("return document.querySelector('#detail[open] .content')?.textContent")
    row = planned_rows("end_to_end", "smoke")[0]
    command = "python -m cs336_systems.benchmarks end_to_end --"
    for text in ("median", row.revisions, row.git_commit, row.utc[:10], HTML, command):
        assert text in details
    browser.wait("return document.querySelector('#detail svg')")
    address = browser.run("return document.querySelector('#detail a').href")
    browser.open(page)
    browser.driver.get(address)
    assert browser.wait("return document.querySelector('#detail[open] .content')?.textContent") == details


def test_back_leads_from_the_rows_of_a_section_to_the_section(page, browser):
    browser.open(page)
    browser.run("document.querySelector('.explore').scrollIntoView()")
    before = browser.run("return scrollY")
    browser.click(".explore")
    browser.wait("return document.querySelector('#explorer .chart svg')")
    browser.driver.back()
    browser.wait("return Math.abs(scrollY - arguments[0]) < 2", before)
    browser.open(page)
    browser.to_explorer()
    was = browser.run("return document.querySelector('#explorer [name=y]').value")
    browser.choose("y", "std")
    browser.choose("y", "mean")
    browser.driver.back()
    browser.wait("return document.querySelector('#explorer [name=y]').value === 'std'")
    assert was == "median"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_light_or_dark_as_the_system_is_until_a_choice_is_made(page, browser, scheme):
    background = "return getComputedStyle(document.body).backgroundColor"
    picture = "return document.querySelector('img[data-figure]').src"
    browser.open(page, scheme=scheme)
    before, drawn = browser.run(background), browser.run(picture)
    assert before == {"light": "rgb(255, 255, 255)", "dark": "rgb(23, 23, 23)"}[scheme]
    browser.click("#theme")
    assert browser.run(background) != before
    browser.wait(f"{picture} !== arguments[0]", drawn)
    changed = browser.run(background)
    browser.open(page, scheme=scheme)
    assert browser.run(background) == changed
    browser.click("#theme")
    assert browser.run(background) == before


@pytest.mark.parametrize("size", [DESKTOP, (800, 1100), PHONE])
def test_it_fits_its_window(page, browser, size):
    browser.open(page, size)
    browser.to_explorer()
    browser.wait("return document.documentElement.scrollWidth <= arguments[0]", size[0])
    cut = "return [...document.querySelectorAll('.scroll')].some((each) => each.scrollWidth > each.clientWidth)"
    assert browser.run(cut) == (size == PHONE)
    too_wide = "return [...document.querySelectorAll('article p')].some((each) => each.scrollWidth > each.clientWidth)"
    assert not browser.run(too_wide)
    shown = "return getComputedStyle(document.querySelector('#contents')).display !== 'none'"
    assert browser.run(shown) == (size == DESKTOP)
    if size == PHONE:
        browser.click("#menu")
        assert browser.run(shown)
        browser.click("#contents a")
        assert not browser.run(shown)


def test_without_a_row_the_page_says_so(tmp_path, charts, browser):
    browser.open(make_page(tmp_path, charts, measured=[]))
    browser.run("document.querySelector('#explorer').scrollIntoView()")
    browser.wait("return document.querySelector('#explorer .count').textContent === 'No row has been measured.'")


def test_a_second_machine_is_compared_with_the_first(tmp_path, charts, browser):
    recorded = {
        experiment: [f"recorded/nvidia-h200/raw/{experiment}/{name}.csv" for name in names]
        for experiment, names in {"end_to_end": ["eager-small", "eager-medium"], "flash": ["fp32"]}.items()
    }
    browser.open(make_page(tmp_path, charts, machine="1 x NVIDIA A10", reference=recorded))
    browser.to_explorer()
    browser.click("#explorer .dtsb-clearAll")
    browser.choose("colour", "machine")
    chart = "return document.querySelector('#explorer .chart svg')?.textContent"
    browser.wait(f"{chart}.includes('nvidia-a10nvidia-h200')")
    browser.choose("base", "nvidia-h200")
    browser.wait(f"{chart}.includes('step, median / nvidia-h200')")
    browser.choose("machine", "nvidia-h200")
    browser.wait(f"{chart} && !{chart.removeprefix('return ')}.includes('nvidia-a10')")
    assert browser.run("return document.querySelector('#explorer [name=machine]').value") == "nvidia-h200"
    browser.click("#explorer .rows tbody tr")
    assert "NVIDIA H200" in browser.wait("return document.querySelector('#detail[open] .content')?.textContent")
    browser.click("#detail form button")
    browser.choose("experiment", "flash")
    browser.wait(f"{LOGARITHMIC}")  # from 0.4 ms to 240 ms
