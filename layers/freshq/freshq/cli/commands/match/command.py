"""The group of commands `freshq match`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from freshq.cli.command import Group
from freshq.cli.commands.match.callers import abandon, callers, extend, match, recover, release, wait
from freshq.cli.commands.match.generate import generate
from freshq.cli.commands.match.opening import MatchCommand
from freshq.cli.commands.match.resources import (
    create,
    delete,
    depths,
    enqueue,
    leave,
    ls,
    register,
    unregister,
)

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(
    cls=Group,
    help="Match callers to resources, such as the agents of a call center.",
    add_completion=False,
    no_args_is_help=True,
)
# By the heading that help lists them under.
VERBS: Final[dict[str, dict[str, Callable[..., None]]]] = {
    "Table": {"create": create, "generate": generate, "delete": delete},
    "Resources": {
        "register": register,
        "enqueue": enqueue,
        "leave": leave,
        "unregister": unregister,
        "list": ls,
        "depths": depths,
    },
    "Callers": {
        "match": match,
        "wait": wait,
        "callers": callers,
        "abandon": abandon,
        "release": release,
        "extend": extend,
        "recover": recover,
    },
}
for _panel, _verbs in VERBS.items():
    for _name, _verb in _verbs.items():
        app.command(_name, cls=MatchCommand, rich_help_panel=_panel)(_verb)
