"""Line breaks in the HTML of a page: allowed between the words of a name, not within an option or a range."""

from __future__ import annotations

import re

_CODE = re.compile(r"(<pre.*?</pre>)|(<code>)(.*?)(</code>)", re.DOTALL)
_OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
_SEAM = re.compile(r"(?<=\w)([./_]+)(?=\w)")
_UNBROKEN = re.compile(
    r"<(?P<tag>pre|code|math)\b.*?</(?P=tag)>|<[^>]*>|(?P<text>[^<]+)", re.DOTALL
)
_WHOLE = re.compile(r"\(?\d[\d.,]*(?: - |–)\d[\d.,]*(?: %)?\)?|\d[\d.,]* %\)?")


def with_seams(content: str) -> str:
    """Let names in code wrap between their words, as in ``train.`` ``seq_`` ``length``, and keep options whole."""

    def wrapped(match: re.Match[str]) -> str:
        if match[1]:  # a block, which scrolls
            return match[1]
        code = _OPTION.sub(r'<span class="option">\g<0></span>', match[3])
        parts = re.split(r"(<[^>]*>)", code)
        parts[::2] = [_SEAM.sub(r"\1<wbr>", part) for part in parts[::2]]
        return match[2] + "".join(parts) + match[4]

    return _CODE.sub(wrapped, content)


def with_whole_numbers(content: str) -> str:
    """Keep a number and its ``%`` on one line, and both ends of a range, as in ``93–100 %``."""

    def whole(match: re.Match[str]) -> str:
        text = match["text"]
        return _WHOLE.sub(r'<span class="whole">\g<0></span>', text) if text else match[0]

    return _UNBROKEN.sub(whole, content)
