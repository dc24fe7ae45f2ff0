"""HTML in which nothing from outside can act: every text is escaped, every outside value stands in a `<bdi>`.

Knows elements, attributes and characters; deliberately knows nothing of what a report says. Markup is a type of its
own (`Html`): whatever else is put into an element is text and is escaped, so that forgetting it is not possible.
Characters that nobody sees (controls, direction overrides, lone surrogates) are shown by their number.
"""

import hashlib
import html
import math
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

MOST_OF_A_NAME = 120
_VOID = ("meta", "img")
# Invisible too, but words and emoji fall apart without them, and they turn no direction.
_JOINERS = "\u200c\u200d"
# The parts of the name of a refused reference: entity, then candidate.
_BETWEEN = " / "


class Html(str):
    """Markup, as opposed to text."""

    __slots__ = ()


def tag(name: str, /, *children: Any, **attributes: str) -> Html:
    """An element; children that are no `Html` are escaped. `class_` and `data_x` are attributes class and data-x."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_visible(value))}"' for key, value in attributes.items()
    )
    return Html(f"<{name}{given}>" if name in _VOID else f"<{name}{given}>{joined(children)}</{name}>")


def joined(children: Iterable[Any]) -> Html:
    """Markup and texts one after the other."""
    return Html("".join(child if isinstance(child, Html) else html.escape(_visible(str(child))) for child in children))


def outside(value: Any, most: int = MOST_OF_A_NAME) -> Html:
    """A value that came from outside: cut, escaped, and isolated so that its direction ends with it."""
    return tag("bdi", _cut(str(value), most))


def entity(entity_id: str) -> Html:
    """The id of an entity, or of a row that names one, with the digests by which an erasure finds it."""
    names = dict.fromkeys([entity_id, *entity_id.split(_BETWEEN)])
    return tag("bdi", _cut(entity_id, MOST_OF_A_NAME), data_entity=" ".join(entity_digest(name) for name in names))


def entity_digest(entity_id: str) -> str:
    """The sha256 by which a report names an entity, whatever characters its id has."""
    return hashlib.sha256(entity_id.encode("utf-8", "surrogatepass")).hexdigest()


def figure(value: float | None, digits: int = 4) -> str:
    """A number for people: whole ones with separators, others with `digits` significant digits, `-` for none."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{int(value):,}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.{digits}g}"


def paragraph(*children: Any) -> Html:
    """A paragraph."""
    return tag("p", *children)


def section(title: str, *children: Any) -> Html:
    """A part of the report under its heading."""
    return tag("section", tag("h2", title), *children)


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> Html:
    """A table that scrolls by itself where the screen is narrow; a sentence where there are no rows."""
    body = [tag("tr", *[tag("td", cell) for cell in row]) for row in rows]
    if not body:
        return paragraph("None.")
    head = [tag("thead", tag("tr", *[tag("th", header) for header in headers]))] if any(headers) else []
    return tag("div", tag("table", *head, tag("tbody", *body)), class_="scroll")


def link(place: str, *children: Any) -> Html:
    """A link to the element of this page whose id is `place`; there are no links to anywhere else."""
    return tag("a", *children, href=f"#{place}")


def picture(address: str, alternative: str) -> Html:
    """A picture that travels inside the page."""
    return tag("img", src=address, alt=alternative)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        f"[U+{ord(character):04X}]"
        if unicodedata.category(character)[0] == "C" and character not in _JOINERS and not character.isspace()
        else character
        for character in text
    )
