"""Write the tables of options on the reference pages, from the models that check the options.

python -m local.option_tables
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from annotated_types import Ge, Gt, Le

from freshq.model.options import QueueConfig
from freshq.model.task import MAX_SECONDS
from freshq.policy.retry import Backoff
from freshq.policy.rules import ReserveRule
from freshq.worker.options import WorkerConfig

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

REFERENCE: Final = Path(__file__).parents[1] / "docs" / "reference"
PAGES: Final[dict[str, type[BaseModel]]] = {"queue.md": QueueConfig, "worker.md": WorkerConfig}
SECTION: Final = re.compile(r"(?<=<!-- made by make options -->\n).*(?=<!-- end -->)", re.DOTALL)
# Defaults that are objects, as a program writes them; the help texts of the other objects say what they are.
WRITTEN: Final[dict[type, str]] = {ReserveRule: "`0`", Backoff: "`Backoff(1, 300)`"}


def page(name: str) -> str:
    """Return the text of a page with its table made anew."""
    text = (REFERENCE / name).read_text("utf-8")
    return SECTION.sub(lambda _: f"\n{table(PAGES[name])}\n\n", text)


def table(model: type[BaseModel]) -> str:
    """Return the options of a model as a table in Markdown."""
    rows = [
        f"| `{name}` | {_default(option)} | {_allowed(option)} | {option.description} |"
        for name, option in model.model_fields.items()
    ]
    return "\n".join(["| option | default | allowed | meaning |", "| --- | --- | --- | --- |", *rows])


def _default(option: FieldInfo) -> str:
    value = option.default
    if value is None or isinstance(value, bool):
        return f"`{value}`"
    if isinstance(value, int | float):
        return f"{value:,.15g}"
    return f'`"{value}"`' if isinstance(value, str) else WRITTEN.get(type(value), "")


def _allowed(option: FieldInfo) -> str:
    """Return the bounds of a number, the pattern of a name, or the members of an enumeration."""
    if isinstance(option.annotation, type) and issubclass(option.annotation, StrEnum):
        return ", ".join(f"`{member}`" for member in option.annotation)
    return ", ".join(filter(None, map(_bound, option.metadata)))


def _bound(constraint: Any) -> str:
    match constraint:
        case Gt(gt=least):
            return f"above {least:,}"
        case Ge(ge=least):
            return f"{least:,} or more"
        case Le(le=most):
            return "at most 100 years" if most == MAX_SECONDS else f"at most {most:,}"
    pattern = getattr(constraint, "pattern", None)
    return f"`{pattern}`" if pattern else ""


def main() -> None:
    """Write the pages."""
    for name in PAGES:
        (REFERENCE / name).write_text(page(name), "utf-8")


if __name__ == "__main__":
    main()
