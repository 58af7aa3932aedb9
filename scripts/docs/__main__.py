"""Write the generated parts of README.md and docs/.

Launch: python -m scripts.docs [PAGE ...], for all pages or the named ones.
"""

import argparse
import signal
from pathlib import Path

from scripts.docs import api, compare, data_dictionary, gpus, picture, readme, recorded_machines, what_fits

PAGES = {
    "README.md": readme.page,
    "docs/release-notes.md": readme.page,
    "docs/images/speed.svg": picture.page,
    "docs/compare.md": compare.page,
    "docs/data-dictionary.md": data_dictionary.page,
    "docs/gpus.md": gpus.page,
    "docs/library.md": api.page,
    "docs/training.md": api.page,
    "docs/what-fits.md": what_fits.page,
    "docs/recorded-machines.md": recorded_machines.page,
}
"""The function that updates each page's text."""

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C leaves no traceback
    parser = argparse.ArgumentParser(description="Write the generated parts of README.md and docs/.")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"of {', '.join(PAGES)}; default: all")
    chosen = parser.parse_args().pages or list(PAGES)
    if unknown := set(chosen) - PAGES.keys():
        parser.error(f"a page is {min(unknown)!r}; allowed: {', '.join(PAGES)}")
    for name in chosen:
        Path(name).write_text(PAGES[name](Path(name).read_text(encoding="utf-8")), encoding="utf-8")
