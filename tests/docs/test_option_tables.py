"""The tables of options on the reference pages are those of the models that check the options."""

from __future__ import annotations

import pytest
from local.option_tables import PAGES, REFERENCE, page, table


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_the_table_that_make_options_writes(name: str) -> None:
    assert table(PAGES[name]) in page(name)
    assert (REFERENCE / name).read_text("utf-8") == page(name)
