"""Layout of pages with the templates beside this file; each page is one HTML file.

Python prepares the parts below as plain data; the templates decide where they stand and how they
look. Templates and style sheet end in .md because Flower's app bundle takes no .html and no .css.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True)
class Figure:
    """One large figure above the cards: its name, its value, and a note below it."""

    name: str
    value: str
    note: str


@dataclass(frozen=True)
class TextTable:
    """Rows of cells, as text.

    Attributes:
        head: Title of each column.
        rows: Cells of each row, as many as there are titles.
        text_columns: Number of columns that hold text, from the left; all others hold numbers.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1


@dataclass(frozen=True)
class Picture:
    """Chart in its own card, with a note and possibly a table below it."""

    title: str
    drawing: Markup
    note: str = ""
    table: TextTable | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """Parts of every page: a title, a line below it, large figures, and versions at its foot."""

    title: str
    subtitle: str
    figures: Sequence[Figure]
    versions: Mapping[str, str]


def render(template: str, page: Page) -> str:
    """Return the HTML of a page, with its style sheet inside.

    Args:
        template: Name of a file in `templates/`.
        page: What the template calls `page`.

    Raises:
        jinja2.UndefinedError: The template asks for something that the page does not have.
    """
    return _environment().get_template(template).render(page=page)


@cache
def _environment() -> Environment:
    """Return the environment of all templates; Jinja is imported here so that runs start sooner."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("privfed.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
