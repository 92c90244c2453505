"""The files of docs/contributing/sql have the statements that the store runs."""

import pytest
from local.pages import DIALECTS, PLANNED, SQL_FOLDER, entries, plans_of, sql_page


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_file_of_a_dialect_has_the_statements_of_the_code(dialect: str) -> None:
    text = (SQL_FOLDER / f"{dialect}.sql").read_text("utf-8")
    assert text == sql_page(dialect, plans_of(text)), "run make sql-statements"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_statement_of_a_claim_has_its_plan(dialect: str) -> None:
    plans = plans_of((SQL_FOLDER / f"{dialect}.sql").read_text("utf-8"))
    assert set(plans) == {name for name, _, _ in entries(dialect) if name.split(":")[0] in PLANNED}
