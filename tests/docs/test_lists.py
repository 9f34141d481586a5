"""Tables of the pages name all formats and all types of auxiliaries."""

import re

from imitate.config.auxiliary import AUXILIARIES
from imitate.data.formats import registry
from imitate.system.extras import installed_points
from tests.docs.pages import ROOT


def first_cells(page):
    """Return the names in the first cell of each row of a page's tables."""
    text = (ROOT / "docs" / page).read_text()
    rows = re.findall(r"^\|([^|\n]+)\|", text, re.MULTILINE)
    return {name for cell in rows for name in re.findall(r"`([^`]+)`", cell)}


def test_each_dataset_format_is_in_the_table_of_the_page():
    others = {point.name for point in installed_points(registry.ENTRY_POINTS)}
    assert {*registry.names()} - others - first_cells("formats.md") == set(), (
        "add a row to docs/formats.md"
    )


def test_each_auxiliary_is_in_the_table_of_a_page():
    found = first_cells("encoders.md") | first_cells("online_rl.md")
    assert set(AUXILIARIES.own) - found == set(), "add a row to docs/encoders.md or online_rl.md"
