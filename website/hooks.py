"""Hooks of MkDocs for pages outside docs/ and for links to files outside docs/.

README becomes the first page, and the reference is generated from the code. A link to a file of the repository leads to
a page that shows the file. Source: https://www.mkdocs.org/user-guide/configuration/#hooks.
"""

import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "client")]

from website import reference  # noqa: E402 - MkDocs loads this file by its path, so the paths come first

#: Pages beside docs/, by their place on the site.
_PAGES: Final = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security-policy.md": "SECURITY.md",
    "tests.md": "tests/README.md",
}

_LINK: Final = re.compile(r"(\]\()([^)\s:#]+)((?:#[^)\s]*)?\))")


def _place_of(path: str) -> str:
    """The path of a repository's file on the site."""
    for place, source in _PAGES.items():
        if path == source:
            return place
    if path == "docs":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}.md" if (ROOT / path).is_file() else f"repository/{path}/index.md"


def _source_of(place: str) -> str:
    """The file in the repository from which a page of the site is made."""
    return _PAGES.get(place, f"docs/{place}")


def _targets(source: str, text: str) -> dict[str, str]:
    """The links of a page that lead into the repository, and the files or folders that they lead to."""
    found = {}
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for _, link, _ in _LINK.findall(plain):
        target = (ROOT / source).parent.joinpath(link).resolve()
        if target.exists() and target.is_relative_to(ROOT):
            found[link] = target.relative_to(ROOT).as_posix()
    return found


def _shown(path: str) -> str:
    """A page that shows a file, or lists a folder."""
    target = ROOT / path
    if target.is_dir():
        found = (each for each in target.iterdir() if not each.name.startswith(("_", ".")))
        names = sorted(each.name + "/" * each.is_dir() for each in found)
        return f"# {path}\n\n" + "\n".join(f"- `{name}`" for name in names) + "\n"
    return f"# {path}\n\n````{target.suffix[1:]}\n{target.read_text(encoding='utf-8')}\n````\n"


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    made = {place: (ROOT / source).read_text(encoding="utf-8") for place, source in _PAGES.items()}
    made |= reference.pages()
    texts = {_source_of(file.src_uri): file.content_string for file in files.documentation_pages()}
    texts |= {source: made[place] for place, source in _PAGES.items()}
    for source, text in texts.items():
        for path in _targets(source, text).values():
            is_page = path.startswith("docs/") and path.endswith((".md", ".png", ".svg"))
            if is_page or path == "docs" or path in _PAGES.values():
                continue
            made[_place_of(path)] = _shown(path)
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links to files of the repository by links to their pages on the site."""
    place = page.file.src_uri
    if place.startswith(("repository/", "reference/")):
        return markdown
    source = _source_of(place)
    here = PurePosixPath(place).parent
    targets = _targets(source, markdown)

    def moved(match: re.Match[str]) -> str:
        path = targets.get(match[2])
        if path is None:
            return match[0]
        return match[1] + PurePosixPath(_relative(_place_of(path), here)).as_posix() + match[3]

    pieces = re.split(r"(```.*?```)", markdown, flags=re.DOTALL)
    return "".join(piece if piece.startswith("```") else _LINK.sub(moved, piece) for piece in pieces)


def _relative(place: str, here: PurePosixPath) -> str:
    up = len(here.parts)
    return "../" * up + place
