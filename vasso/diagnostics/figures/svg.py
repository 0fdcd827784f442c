"""SVG output: matplotlib's SVG is parsed and rewritten for files and for web pages.

matplotlib writes a style rule for every element of the page (`*{...}`), a fixed size and fixed
colours. Its ids repeat from figure to figure and depend on the last bits of coordinates. All of
this is replaced; text stays text.
"""

import hashlib
import re
from collections.abc import Callable
from functools import cache
from xml.etree import ElementTree

from vasso.diagnostics.figures.palette import GRID, INK, on_dark

SVG = "http://www.w3.org/2000/svg"
HREF = "{http://www.w3.org/1999/xlink}href"
SYSTEM = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"
GROWTH = 1.6
"""Largest size of a figure in a page, relative to its natural size."""
Element = ElementTree.Element


def for_file(text: str) -> str:
    """The text of an SVG file: natural size, the fonts of the reader's system."""
    root = _parsed(text)
    _change_styles(root, lambda style: _fonts(style, SYSTEM))
    return f'<?xml version="1.0" encoding="utf-8"?>\n{_serialised(root)}\n'


def for_page(text: str, *, title: str, description: str, name: str | None) -> str:
    """An `<svg>` element without a fixed width, in the colours of the page.

    `name` is the prefix of its ids; None is a hash of the content.
    """
    root = _parsed(text)
    content = f"{title}\n{description}\n{_serialised(root)}".encode()
    prefix = f"{name or f'figure-{hashlib.sha256(content).hexdigest()[:10]}'}-"
    _change_styles(root, _page_style)
    _rename(root, lambda old: prefix + old)
    _label(root, prefix, title, description)
    width = float(root.get("viewBox", "0 0 0 0").split()[2])
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("class", "figure")
    grows = f"display: block; width: 100%; height: auto; max-width: {width * GROWTH:.0f}px; "
    root.set("style", grows + root.get("style", ""))
    return _serialised(root)


def _parsed(text: str) -> Element:
    """The tree without metadata; its one style rule becomes properties that the root hands down."""
    root = ElementTree.fromstring(text)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in {f"{{{SVG}}}metadata", f"{{{SVG}}}style"}:
                parent.remove(child)
    root.set("style", "stroke-linejoin: round; stroke-linecap: butt")
    for element in root.iter():
        if element.tag == f"{{{SVG}}}path":
            element.set("d", _rounded(element.get("d", "")))
        for key in ("x", "y"):
            if key in element.attrib:
                element.set(key, _rounded(element.attrib[key]))
        if (target := element.attrib.pop(HREF, None)) is not None:
            element.set("href", target)
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
    _drop_unused_ids(root)
    _count_hashed_ids(root)
    return root


def _rounded(numbers: str) -> str:
    """Coordinates rounded to a hundredth of a point."""
    short = re.sub(r"-?\d+\.\d{3,}", _hundredth, numbers)
    return " ".join(short.split())


def _hundredth(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _drop_unused_ids(root: Element) -> None:
    """Removes matplotlib's numbered ids, such as line2d_3; ids that are used or chosen stay."""
    for element in root.iter():
        if "id" in element.attrib and re.fullmatch(r"[A-Za-z][\w.]*_\d+", element.attrib["id"]):
            del element.attrib["id"]


def _count_hashed_ids(root: Element) -> None:
    """Replaces ids that hash coordinates by numbers: processors differ in the last bits."""
    every = (element.get("id", "") for element in root.iter())
    hashed = [name for name in every if re.fullmatch(r"[a-z][0-9a-f]{10}", name)]
    counted = {name: f"{name[0]}{place}" for place, name in enumerate(hashed, 1)}
    _rename(root, lambda old: counted.get(old, old))


def _change_styles(root: Element, change: Callable[[str], str]) -> None:
    for element in root.iter():
        if "style" in element.attrib:
            element.set("style", change(element.attrib["style"]))


def _fonts(style: str, family: str) -> str:
    return re.sub(r"font-family:[^;]*", f"font-family: {family}", style)


@cache
def _page_style(style: str) -> str:
    style = style.replace(INK, "currentColor").replace(GRID, f"var(--figure-grid, {GRID})")
    style = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", _in_both_themes, style)
    return _fonts(style, "inherit")


def _in_both_themes(match: re.Match[str]) -> str:
    """A colour by theme, after the colour alone for browsers that know no `light-dark`."""
    name, colour = match.groups()
    return f"{name}: {colour}; {name}: light-dark({colour}, {on_dark(colour)})"


def _rename(root: Element, new: Callable[[str], str]) -> None:
    for element in root.iter():
        if "id" in element.attrib:
            element.set("id", new(element.attrib["id"]))
        if element.get("href", "").startswith("#"):
            element.set("href", f"#{new(element.attrib['href'][1:])}")
        for key, value in element.attrib.items():
            if "url(#" in value:
                element.set(key, re.sub(r"(?<=url\(#)[^)]+", lambda m: new(m[0]), value))


def _label(root: Element, prefix: str, title: str, description: str) -> None:
    """Puts title and description first, where screen readers look for them."""
    labels = {"title": title, "desc": description} if description else {"title": title}
    for place, (tag, text) in enumerate(labels.items()):
        element = Element(f"{{{SVG}}}{tag}", {"id": prefix + tag})
        element.text = text
        root.insert(place, element)
    root.set("role", "img")
    root.set("aria-labelledby", " ".join(prefix + tag for tag in labels))


def _serialised(root: Element) -> str:
    ElementTree.register_namespace("", SVG)
    ElementTree.indent(root, "")
    return ElementTree.tostring(root, encoding="unicode")
