"""Steps of the site's build (mkdocs.yml, ``hooks``): generated pages, and equations as MathML.

``docs/`` can also be read in an editor. The hooks add only what the program already contains.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from site_api import api_pages
from site_coverage import coverage_page
from site_lines import with_seams, with_whole_numbers
from site_reference import command_page, keys_page

from imitate.cli.mistakes import page_table

ROOT = Path(__file__).parents[1]
_EQUATION = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<tex>.*?)\\[)\]]</(?P=tag)>',
    re.DOTALL,
)
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):<code>(?P<short>~?)(?P<name>[^<]*)</code>")
# Search weights that put guides before the reference, whose signatures and options would otherwise be found first.
SEARCH_BOOSTS = {
    "index.md": 4.0,
    "tutorials/": 1.5,
    "algorithms/": 0.5,
    "results/": 0.5,
    "reference/api/": 0.2,
    "changes.md": 0.2,
    "coverage.md": 0.2,
}
_OPTIONS_OF = re.compile(r"<!-- options of (\w+) -->")
"""Comment that marks where the table of another toolkit's options (imitate/cli/mistakes.py) is inserted."""
_LINK_OUTSIDE = re.compile(
    r"\[(?P<text>[^\]]+)\]\((?:\.\./)+(?P<path>(?:imitate|configs|examples|scripts|benchmarks)/[^)#]*)\)"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not written by hand."""
    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def generated_pages() -> dict[str, str]:
    """Return the text of each generated page by its path below ``docs/``."""
    return {
        "changes.md": (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "]("),
        "coverage.md": coverage_page(),
        "reference/cli.md": command_page(),
        "reference/config_keys.md": keys_page(),
        **api_pages(),
    }


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Set the page's weight in the search, write tables of options, and replace links out of ``docs/`` by paths."""
    source = page.file.src_path
    boosts = [boost for prefix, boost in SEARCH_BOOSTS.items() if source.startswith(prefix)]
    page.meta.setdefault("search", {"boost": boosts[0] if boosts else 1.0})

    def path(match: re.Match[str]) -> str:
        if not (ROOT / match["path"]).exists():
            raise PluginError(f"{source}: {match[0]}: there is no {match['path']}")
        known = match["text"].strip("`") in match["path"]
        return f"`{match['path']}`" if known else f"{match['text']} (`{match['path']}`)"

    with_options = _OPTIONS_OF.sub(lambda found: page_table(found[1]), markdown)
    return _LINK_OUTSIDE.sub(path, with_options)


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Write equations as MathML, which needs no script, and mark the places where lines may end."""

    def named(match: re.Match[str]) -> str:
        name = match["name"].rpartition(".")[2] if match["short"] else match["name"]
        return f"<code>{name}</code>"

    def mathml(match: re.Match[str]) -> str:
        tex = html.unescape(match["tex"])
        display = "block" if match["open"] == "[" else "inline"
        try:
            # A stretched bar with an exponent hangs below the line.
            return convert(tex, display=display).replace(
                "<mo>&#x02016;</mo>", '<mo stretchy="false">&#x02016;</mo>'
            )
        except Exception as error:
            raise PluginError(f"{page.file.src_path}: no equation: {tex!r} ({error})") from error

    return with_seams(with_whole_numbers(_ROLE.sub(named, _EQUATION.sub(mathml, content))))
