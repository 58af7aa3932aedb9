"""A small page, and a browser to open it in."""

import json
import shutil

import pytest
import vl_convert
from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

from cs336_systems.experiments.registry import EXPERIMENTS
from cs336_systems.plan import make_plan, plan_to_json
from scripts.rendering import style
from scripts.rendering.markup import Table, escape, string
from scripts.stages.tables import write as write_table
from scripts.stages.web import write
from tests.samples import config, planned_rows

FLAGS = (
    "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    " disable-component-update disable-sync"
)
HTML = "<img src=x onerror='window.acted=1'>"
"""Text that must be shown as it is, wherever rows or the report have it."""
MEASURED = ["end_to_end", "flash"]
DESKTOP, PHONE = (1440, 1000), (390, 844)


@pytest.fixture(scope="session")
def charts(tmp_path_factory):
    path = tmp_path_factory.mktemp("charts") / "charts.js"
    path.write_text(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"), encoding="utf-8")
    return path


def source(steps, builds):
    """A report in the templates' own terms: a question, figures, and tables of some medians, in ms and s.

    `fig-wide` and `tab-alike` are only in the web edition; the numbers of `tab-alike` stand below the titles of others.
    """
    rows = [[f"cell-{row}", f"{number:.2f}"] for row, number in enumerate(steps)]
    table = Table(["what", "step / ms"], [["long" * 20, HTML], *rows]).markup()
    alike = [[f"{1000 * builds[0]:.2f}", f"{1000 * builds[0]:.2f}"], [f"{100 * builds[0]:.2f}", f"{steps[0]:.2f}"]]
    titles = ["", "start / ms", "step / ms"]
    return f"""#import sys.inputs.at("theme", default: "/report/theme.typ"): *
#let picture = picture.with("/figures/")
#show: report.with(title: {string(f"Report of {HTML}")}, machine: "cpu")
#headline[Systems report]
#grid(columns: (1fr, 1fr), tile([2.0×], [of something]), tile([3 ms], [of something else]))
#pagebreak()
= First
#question[How long does {escape(HTML)} take?]
#lorem(400)
#online[
#picture("wide", [Wide.], "The same")
@fig-wide and @tab-alike:
#tabulated([Alike.])[
{Table(titles, [["A heading"], *([f"line-{row}", *numbers] for row, numbers in enumerate(alike))]).markup()}
] <tab-alike>
]
#picture("lines", [Lines.], "Two lines")
#lorem(400) @fig-lines, @tab-steps and $x / 2$.
$T = 2 (N - 1) / N dot 2 B D / W = 4 (N - 1) B D / (N W) = 4 (N - 1) B D / (N W) <= 12 B D F / (N C)$
= Second
#section("end_to_end", [How long?], "end_to_end")
#tabulated([Steps.])[
{table}
] <tab-steps>
#outcome("failed") #reason("not measured: out of memory")
"""


def make_page(folder, charts, *, measured=MEASURED, reference=None, machine="cpu"):
    """A page of measured rows of some experiments, as scripts/stages/web.py makes it."""
    plan = make_plan(config(machine=machine, scale="smoke"))
    tables = {name: folder / f"{name}.csv" for name in EXPERIMENTS}
    rows = {name: planned_rows(name, "smoke") if name in measured else [] for name in EXPERIMENTS}
    for name, path in tables.items():
        write_table(name, rows[name], str(path))
        path.write_text(path.read_text(encoding="utf-8").replace("AMD EPYC", HTML).replace(",tiled,", f",{HTML},"))
    made_up = planned_rows("end_to_end", "smoke")
    medians = ([row.median for row in made_up if row.metric == metric][:10] for metric in ("step", "build"))
    (folder / "writeup.typ").write_text(source(*medians), encoding="utf-8")
    (folder / "plan.json").write_text(plan_to_json(plan), encoding="utf-8")
    figure, (axes,) = style.subplots()
    axes.plot([128, 256], [1, 2.5], marker="o", label=HTML)
    axes.set(xlabel="context / tokens", ylabel="step / ms")
    style.save(figure, folder / "lines.svg")
    shutil.copy(folder / "lines.svg", folder / "wide.svg")
    write(
        source=str(folder / "writeup.typ"),
        figures=[str(folder / f"{name}.svg") for name in ("lines", "wide")],
        plan=str(folder / "plan.json"),
        tables={name: str(path) for name, path in tables.items()},
        reference=reference or {},
        charts=str(charts),
        output=str(folder / "report.html"),
    )
    return folder / "report.html"


class Browser:
    """A headless Chromium that counts what it may not do: errors on its console, and requests."""

    def __init__(self, folder):
        options = webdriver.ChromeOptions()
        for flag in FLAGS.split():
            options.add_argument(f"--{flag}")
        options.add_argument(f"--user-data-dir={folder / 'profile'}")
        options.binary_location = shutil.which("chromium")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        self.driver.get("about:blank")  # the page of a new tab makes requests, also late
        self.downloads = folder / "downloads"
        allowed = {"behavior": "allow", "downloadPath": str(self.downloads)}
        self.driver.execute_cdp_cmd("Browser.setDownloadBehavior", allowed)
        self.driver.set_script_timeout(60)

    def open(self, page, size=DESKTOP, scheme="light"):
        width, height = size
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        self.complaints()  # of the page before, and of the browser's own
        self.driver.get(page.as_uri())
        self.wait("return document.querySelector('img[data-figure]').naturalWidth")

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, script, *arguments):
        """The first value of a script that is something."""
        return WebDriverWait(self.driver, 60).until(lambda _: self.run(script, *arguments), f"never came: {script}")

    def click(self, selector, index=0):
        self.run("document.querySelectorAll(arguments[0])[arguments[1]].click()", selector, index)

    def press(self, key):
        code = key if key == "Enter" else f"Arrow{key}"
        script = (
            "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))"
        )
        self.run(script, code)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)", selector)

    def to_explorer(self):
        self.run("document.querySelector('#explorer').scrollIntoView()")
        self.wait("return document.querySelector('#explorer .chart svg')")

    def choose(self, name, value):
        script = """const select = document.querySelector(`#explorer [name="${arguments[0]}"]`);
            select.value = arguments[1]; select.dispatchEvent(new Event('change', {bubbles: true}))"""
        self.run(script, name, value)

    def saved(self, name):
        """The text of a file that the page has saved."""
        WebDriverWait(self.driver, 60).until(lambda _: (self.downloads / name).is_file(), f"no {name}")
        return (self.downloads / name).read_text(encoding="utf-8")

    def complaints(self):
        """Errors since the last call, and requests of anything but the page itself and what it holds."""
        errors = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                address = message["params"]["request"]["url"]
                if not address.startswith(("blob:", "data:", "file:///")):
                    errors.append(f"requests {address}")
        return errors


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("needs Debian's packages chromium and chromium-driver")
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.driver.quit()


@pytest.fixture
def browser(chromium):
    """The browser, which must have had nothing to complain of when a test is over."""
    yield chromium
    assert chromium.complaints() == []
    assert chromium.run("return window.acted") is None


@pytest.fixture(scope="session")
def page(tmp_path_factory, charts):
    return make_page(tmp_path_factory.mktemp("page"), charts)
