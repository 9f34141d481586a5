"""Steps of the site's build (mkdocs.yml, ``hooks``): generated pages, and equations as MathML.

``docs/`` reads well in an editor, too. Added here is only what would be written twice otherwise.
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
from site_reference import command_page, keys_page

ROOT = Path(__file__).parents[1]
_EQUATION = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<tex>.*?)\\[)\]]</(?P=tag)>',
    re.DOTALL,
)
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):<code>(?P<short>~?)(?P<name>[^<]*)</code>")
_LINK_OUTSIDE = re.compile(
    r"\[(?P<text>[^\]]+)\]\((?:\.\./)+(?P<path>(?:imitate|configs|examples|scripts|benchmarks)/[^)#]*)\)"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not written by hand."""
    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def generated_pages() -> dict[str, str]:
    """Text of each generated page by its path below ``docs/``."""
    return {
        "changes.md": (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "]("),
        "reference/cli.md": command_page(),
        "reference/config_keys.md": keys_page(),
    }


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Write the paths of files outside ``docs/`` in place of links to them: the site holds no code."""

    def path(match: re.Match[str]) -> str:
        if not (ROOT / match["path"]).exists():
            raise PluginError(f"{page.file.src_path}: {match[0]}: there is no {match['path']}")
        known = match["text"].strip("`") in match["path"]
        return f"`{match['path']}`" if known else f"{match['text']} (`{match['path']}`)"

    return _LINK_OUTSIDE.sub(path, markdown)


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Draw equations as MathML, which needs no script, and the references of docstrings as code."""

    def named(match: re.Match[str]) -> str:
        name = match["name"].rpartition(".")[2] if match["short"] else match["name"]
        return f"<code>{name}</code>"

    def mathml(match: re.Match[str]) -> str:
        tex = html.unescape(match["tex"])
        display = "block" if match["open"] == "[" else "inline"
        try:
            return convert(tex, display=display)
        except Exception as error:
            raise PluginError(f"{page.file.src_path}: no equation: {tex!r} ({error})") from error

    return _ROLE.sub(named, _EQUATION.sub(mathml, content))
