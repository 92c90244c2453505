"""The tables of options on the reference pages are those of the models that check the options."""

import pytest
from local.reference import OPTION_PAGES, REFERENCE, option_page, option_table


@pytest.mark.parametrize("name", OPTION_PAGES)
def test_a_page_has_the_table_that_make_options_writes(name: str) -> None:
    assert option_table(OPTION_PAGES[name]) in option_page(name)
    assert (REFERENCE / name).read_text("utf-8") == option_page(name)
