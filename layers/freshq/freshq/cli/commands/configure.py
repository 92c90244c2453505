"""Show and store the options of a queue, and of the worker passes of its stack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from freshq.cli.command import QueueContext
from freshq.cli.errors import print_error
from freshq.cli.flags import with_flags
from freshq.cli.stacks import Stack
from freshq.errors import needs
from freshq.model.pass_options import PassOptions
from freshq.model.storable_options import StoredOptions, as_text
from freshq.queue.core import core_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq.cli.session import Session
    from freshq.model.options import QueueConfig, QueueOptions
    from freshq.queue.base import BaseQueue

Forget = Annotated[bool, typer.Option("--forget", help="Forget the stored options, except shards.")]
Adopt = Annotated[
    bool,
    typer.Option(
        "--adopt",
        help="With --stack: store the options that an older template has as parameters. Do this before you "
        "deploy the present template.",
    ),
]
STACK_PANEL: Final = "Worker passes, with --stack"


class ConfigurableOptions(StoredOptions, PassOptions):
    """The options of a queue, and of the worker passes of its stack."""


PANELS: Final = {
    **dict.fromkeys(StoredOptions.model_fields),
    **dict.fromkeys(PassOptions.model_fields, STACK_PANEL),
}


@with_flags(ConfigurableOptions, PANELS, show_defaults=False)
def configure(context: QueueContext, forget: Forget = False, adopt: Adopt = False, **options: Any) -> None:
    """Show the options of the queue, or store some.

    Every process that uses the queue follows stored options within 5 s. An option in the address that differs
    from the stored one is an error, unless the address has override=on.
    """
    session = context.session
    given = {name: value for name, value in options.items() if value is not None}
    if session.stack is not None:
        _configure_stack(session, session.stack, given, forget=forget, adopt=adopt)
        return
    refused = ["adopt"] if adopt else [name for name in given if name in PassOptions.model_fields]
    if refused:
        msg = f"{refused[0]}: only with --stack"
        raise ValueError(msg)
    config = session.queue.configure(forget=forget, **cast("QueueOptions", given))
    _show(session, config, _rows(session.queue, config))


def _configure_stack(
    session: Session, stack: str, given: dict[str, Any], *, forget: bool, adopt: bool
) -> None:
    with needs("aws"):
        from freshq.aws.pass_options import configure_stack, parse_pass_options, stored_pass_options
    if adopt:
        given = _adopted(Stack.describe(stack), session.queue) | given
    configure_stack(session.queue, forget=forget, **given)
    stored = stored_pass_options(session.queue)
    of_passes = parse_pass_options(stored).model_dump()
    rows = {name: (value, "stored" if name in stored else "default") for name, value in of_passes.items()}
    config = session.queue.configure()
    _show(session, config, _rows(session.queue, config) | rows)


def _adopted(stack: Stack, queue: BaseQueue) -> dict[str, Any]:
    """Return the options that an older template has as parameters; say which parameters to remove."""
    if stack.gone:
        print_error(f"take these out of samconfig.toml before you deploy: {', '.join(sorted(stack.gone))}")
    else:
        print_error(f"stack {stack.name!r}: no parameter of it is an option; nothing to adopt")
    storable = {*core_of(queue).options.storable, *PassOptions.model_fields}
    return {name: value for name, value in stack.options().items() if name in storable}


def _rows(queue: BaseQueue, config: QueueConfig) -> dict[str, tuple[object, str]]:
    """Return the value of each option of a queue, and where it comes from."""
    core = core_of(queue)
    return {
        name: (getattr(config, name, core.store.shards), core.options.source(name))
        for name in StoredOptions.model_fields
        if name in core.options.storable
    }


def _show(session: Session, config: QueueConfig, rows: Mapping[str, tuple[Any, str]]) -> None:
    values = config.model_dump(mode="json", include=set(StoredOptions.model_fields))
    session.output.answer(
        {
            name: {"value": values.get(name, value), "source": source}
            for name, (value, source) in rows.items()
        },
        {name: f"{as_text(value):<12} {source}" for name, (value, source) in rows.items()},
    )
