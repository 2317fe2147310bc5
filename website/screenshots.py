"""Pictures of the dashboard, made by Chromium: `python3 do.py screenshots`.

    python -m website.screenshots               new versions of the pictures in docs/images that pages use
    python -m website.screenshots DIRECTORY     all pictures: five pages, light and dark, 1,280 and 400 pixels wide

The pictures show the dashboard of `example_shop`.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from website.example_shop import ROOT, ExampleShop, serving_shop

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES: Final = ROOT / "docs" / "images"

#: The pages by the names of their pictures, with the greatest height of the picture.
PAGES: Final = {"overview": 700, "messages": 560, "group": 1_000, "letters": 560, "letter": 1_400}

_SELECTOR: Final = "amount > 300 AND region = 'EU'"

Scheme: TypeAlias = Literal["light", "dark"]
SCHEMES: Final[tuple[Scheme, ...]] = ("light", "dark")
WIDTHS: Final = (1280, 400)
#: A narrow page is taller, because its parts are below one another.
_TALLER: Final = 1.6
_PATIENCE_MS: Final = 30_000

#: Directories of this machine are replaced by these directories of the example.
_SHOWN_DIRECTORY: Final = "/srv/shop"
_SHOWN_LIBRARY: Final = "/srv/shop/.venv/lib/python3.13/site-packages"
_REPLACE: Final = """pairs => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    while (walker.nextNode())
        for (const [here, shown] of pairs) walker.currentNode.data = walker.currentNode.data.replaceAll(here, shown)
}"""


class Picture(NamedTuple):
    """A picture of a page of the dashboard."""

    page: str
    scheme: Scheme = "light"
    width: int = WIDTHS[0]

    @property
    def file_name(self) -> str:
        """The file name of the picture. Documents use only pictures of wide, light pages."""
        look = "" if self == Picture(self.page) else f"-{self.scheme}-{self.width}"
        return f"dashboard-{self.page}{look}.png"


ALL: Final = [Picture(*each) for each in product(PAGES, SCHEMES, WIDTHS)]


def used() -> list[Picture]:
    """The pictures that README and the pages of docs show."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    names = set(re.findall(r"images/([\w-]+\.png)", text))
    return [picture for picture in ALL if picture.file_name in names]


def take(pictures: Sequence[Picture], directory: Path) -> None:
    """Make these pictures and save them in a directory."""
    from playwright.sync_api import sync_playwright

    directory.mkdir(parents=True, exist_ok=True)
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with serving_shop() as shop, sync_playwright() as playwright:
        # In a container, Chromium has no namespaces for its sandbox. It loads only our own pages.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for picture in pictures:
            _take(browser, shop, picture, directory / picture.file_name)
        browser.close()


def _take(browser: "Browser", shop: ExampleShop, picture: Picture, file: Path) -> None:
    height = round(PAGES[picture.page] * (1 if picture.width == WIDTHS[0] else _TALLER))
    context = browser.new_context(
        base_url=f"http://{shop.address}",
        viewport={"width": picture.width, "height": height},
        color_scheme=picture.scheme,
        timezone_id="UTC",
    )
    context.set_default_timeout(_PATIENCE_MS)
    page = context.new_page()
    page.goto(shop.dashboard.link(shop.address))
    page.goto(_path(shop, picture.page))
    _settle(page)
    library = [[str(ROOT / "client"), _SHOWN_LIBRARY], [str(ROOT), _SHOWN_LIBRARY]]
    page.evaluate(_REPLACE, [[shop.directory, _SHOWN_DIRECTORY], *library])
    shown = page.evaluate("Math.ceil(document.body.getBoundingClientRect().height)")
    page.screenshot(path=file, clip={"x": 0, "y": 0, "width": picture.width, "height": min(shown, height)})
    context.close()


def _path(shop: ExampleShop, name: str) -> str:
    broker = "/b/broker-a"
    match name:
        case "overview":
            return f"{broker}/"
        case "messages":
            return f"{broker}/topics/orders/messages?sql={quote(_SELECTOR)}"
        case "group":
            return f"{broker}/groups/billing"
        case "letters":
            return f"{broker}/dead-letters/billing"
        case _:
            return f"{broker}/dead-letters/billing/{shop.letter}?edit=1"


def _settle(page: "Page") -> None:
    """Wait for the parts that a page loads, and for the figures of the overview, which need two samples."""
    from playwright.sync_api import expect

    expect(page.locator(".later, .htmx-request")).to_have_count(0, timeout=_PATIENCE_MS)
    figure = page.locator(".tile strong").first
    if figure.count():
        expect(figure).to_have_text(re.compile(r"^[1-9]"), timeout=_PATIENCE_MS)


def main(arguments: Sequence[str]) -> None:
    """Read the arguments, and make the pictures."""
    parser = argparse.ArgumentParser(prog="do.py screenshots", description="Make the pictures of the dashboard.")
    parser.add_argument(
        "directory",
        nargs="?",
        type=Path,
        help="for all pictures; if unset, only the pictures that pages use are made, in docs/images",
    )
    parser.add_argument("--page", choices=[*PAGES], help="only the pictures of this page")
    parser.add_argument("--scheme", choices=SCHEMES, help="only pictures in this colour scheme")
    parser.add_argument("--width", choices=WIDTHS, type=int, help="only pictures of this width")
    given = parser.parse_args(arguments)
    wanted = (given.page, given.scheme, given.width)
    pictures = [
        picture
        for picture in (used() if given.directory is None else ALL)
        if all(choice in (None, value) for choice, value in zip(wanted, picture, strict=True))
    ]
    take(pictures, given.directory or IMAGES)


if __name__ == "__main__":
    main(sys.argv[1:])
