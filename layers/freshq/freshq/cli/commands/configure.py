"""Show and store the options of a queue, and of the worker passes of its stack."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from freshq.cli.command import Group, QueueCommand, QueueContext, with_flags
from freshq.cli.stacks import Stack, settle_problem
from freshq.errors import needs, printable
from freshq.model.pass_options import PassOptions
from freshq.model.storable_options import StoredOptions, as_text
from freshq.model.task import TaskStatus
from freshq.policy.groups import GroupRule, GroupRules, RunningCounts
from freshq.queue.core import core_of
from freshq.queue.reading import count_waiting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType
    from rich.table import Table

    from freshq.cli.session import Session
    from freshq.model.options import QueueConfig, QueueOptions
    from freshq.queue.base import BaseQueue

Forget = Annotated[bool, typer.Option("--forget", help="Forget the stored options, except shards.")]
# How `freshq group` names the rule of all groups without their own rule.
EVERY_OTHER: Final = "*"
# Maximum number of waiting and running tasks that `freshq group ls` counts; beyond it, counts are lower
# bounds. Where a store cannot count shed tasks, they are counted among this many tasks.
COUNTED_TASKS: Final = 10_000
STACK_PANEL: Final = "Worker passes, with --stack"


class ConfigurableOptions(StoredOptions, PassOptions):
    """The options of a queue, and of the worker passes of its stack."""


PANELS: Final = {
    **dict.fromkeys(StoredOptions.model_fields),
    **dict.fromkeys(PassOptions.model_fields, STACK_PANEL),
}


group = typer.Typer(
    cls=Group, help="Weights and limits of groups.\n\nThey are stored with the queue.", no_args_is_help=True
)
GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", help=f"A group, a parent, or {EVERY_OTHER} for all without a rule.")
]
Weight = Annotated[float | None, typer.Option("--weight", help="Its relative share of the time.")]
MaxRunning = Annotated[int | None, typer.Option("--max-running", help="Maximum number of running tasks.")]
Rate = Annotated[float | None, typer.Option("--rate", help="Most starts per second.")]
Units = Annotated[float | None, typer.Option("--units", help="Most units of cost per second.")]
Burst = Annotated[float | None, typer.Option("--burst", help="Units that can be saved up.")]


@with_flags(ConfigurableOptions, PANELS, show_defaults=False)
def configure(context: QueueContext, forget: Forget = False, **options: Any) -> None:
    """Show the options of the queue, or store some.

    Every process that uses the queue follows stored options within 5 s. An option in the address that differs
    from the stored one is an error, unless the address has override=on. `freshq group` changes the rules of
    single groups.
    """
    session = context.session
    given = {name: value for name, value in options.items() if value is not None}
    if session.stack is not None:
        _configure_stack(session, session.stack, given, forget=forget)
        return
    refused = [name for name in given if name in PassOptions.model_fields]
    if refused:
        msg = f"{refused[0]}: only with --stack"
        raise ValueError(msg)
    config = session.queue.configure(forget=forget, **cast("QueueOptions", given))
    _show(session, config, _rows(session.queue, config))


def _configure_stack(session: Session, stack: str, given: dict[str, Any], *, forget: bool) -> None:
    with needs("aws"):
        from freshq.aws.pass_options import configure_stack, parse_pass_options, stored_pass_options
    if "settle_seconds" in given:
        for problem in settle_problem(Stack.describe(stack).parameters, given["settle_seconds"]):
            raise ValueError(problem)
    configure_stack(session.queue, forget=forget, **given)
    stored = stored_pass_options(session.queue)
    of_passes = parse_pass_options(stored).model_dump()
    rows = {name: (value, "stored" if name in stored else "default") for name, value in of_passes.items()}
    config = session.queue.configure()
    _show(session, config, _rows(session.queue, config) | rows)


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


@group.command("ls", cls=QueueCommand)
def group_ls(context: QueueContext) -> None:
    """Show the rules of groups and kinds, and the groups with tasks.

    Tasks that were shed count while they are stored, on DynamoDB among the first 10,000 tasks.
    """
    session = context.session
    rules = session.queue.configure().groups
    waiting, running, shed = _counted(session.queue)
    names = {*rules.of, *waiting, *running.by_group(), *shed}
    all_running = sum(running.by_group().values())
    rows: dict[str, dict[str, Any]] = {EVERY_OTHER: rules.default.values()}
    for name in sorted(names):
        in_work = running.of(name, rules.separator)
        running_share = round(in_work / max(1, all_running), 3)
        full = running.full(name, rules)
        counts = {"waiting": waiting[name], "running": in_work, "running_share": running_share}
        counts["shed"] = shed[name]
        counts["at_limit"] = full is not None
        rows[name] = counts | (rules.of[name].values() if name in rules.of else {})
    kinds = {name: rules.kinds[name].values() for name in sorted(rules.kinds)}
    session.output.answer(
        {"separator": rules.separator, "share": rules.share, "groups": rows, "kinds": kinds},
        partial(_group_page, rules.share, rows, kinds),
    )


def _group_page(
    share: str, rows: Mapping[str, Mapping[str, Any]], kinds: Mapping[str, Mapping[str, Any]]
) -> RenderableType:
    """Return what groups share, a table of groups, and one of kinds if there are rules for some."""
    from rich.console import Group as Lines

    tables = [_table("group", rows), *([_table("kind", kinds)] if kinds else [])]
    return Lines(f"Groups share {share} by their weights.", *tables)


def _table(heading: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table of groups or kinds, with the columns that any of them has."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    # The rule of all other groups has no counts, and the columns of counts come first.
    longest_first = sorted(rows.values(), key=len, reverse=True)
    columns = list(dict.fromkeys(column for row in longest_first for column in row))
    table = Table(heading, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    for name, row in rows.items():
        table.add_row(printable(name), *(_cell(row.get(column)) for column in columns))
    return table


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{value}"


def _counted(queue: BaseQueue) -> tuple[Counter[str], RunningCounts, Counter[str]]:
    """Return the waiting, the running and the shed tasks by group."""
    core = core_of(queue)
    now = core.now()
    created_after = now - core.rules.config.stale_after_seconds
    waiting = count_waiting(core.store, core.name, now, created_after, COUNTED_TASKS)
    running = RunningCounts()
    for task in core.store.leased(core.name, COUNTED_TASKS):
        running.add(task.group, 1)
    shed = core.store.shed_by_group(core.name, now, created_after)
    if shed is None:
        some = map(core.with_current_status, islice(core.store.scan(core.name), COUNTED_TASKS))
        shed = Counter(task.group for task in some if task.status is TaskStatus.SHED)
    return _named(waiting), running, _named(shed)


def _named(counts: Mapping[str | None, int]) -> Counter[str]:
    """Return the counts of groups, without the tasks that have none."""
    return Counter({name: number for name, number in counts.items() if name is not None})


def _facts(row: Mapping[str, Any]) -> str:
    return "  ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.items())


@group.command("set", cls=QueueCommand)
def group_set(
    context: QueueContext,
    group_name: GroupName,
    weight: Weight = None,
    max_running: MaxRunning = None,
    rate: Rate = None,
    units: Units = None,
    burst: Burst = None,
) -> None:
    """Change the rule of a group.

    Options that are not named keep their values. Workers follow within 5 s.
    """
    given: dict[str, Any] = {"weight": weight, "max_running": max_running, "rate_per_second": rate}
    given |= {"units_per_second": units, "burst_units": burst}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if not changes:
        raise ValueError("set: give --weight, --max-running, --rate, --units or --burst")
    rules = context.session.queue.configure().groups
    rule = replace(rules.default if group_name == EVERY_OTHER else rules.rule(group_name), **changes)
    _store(context.session, rules, group_name, rule)


@group.command("unset", cls=QueueCommand)
def group_unset(context: QueueContext, group_name: GroupName) -> None:
    """Remove the rule of a group, so that the default applies again."""
    rules = context.session.queue.configure().groups
    if group_name != EVERY_OTHER and group_name not in rules.of:
        msg = f"group: {group_name!r:.80} has no rule of its own; freshq group ls lists the rules"
        raise ValueError(msg)
    _store(context.session, rules, group_name, None)


def _store(session: Session, rules: GroupRules, name: str, rule: GroupRule | None) -> None:
    """Store the rule of a group; None to remove it."""
    if name == EVERY_OTHER:
        new = replace(rules, default=rule or GroupRule())
    else:
        others = {other: known for other, known in rules.of.items() if other != name}
        new = replace(rules, of=others if rule is None else others | {name: rule})
    session.queue.configure(groups=new)
    shown = new.default if name == EVERY_OTHER else new.rule(name)
    session.output.answer({name: shown.values()}, f"{name}: {_facts(shown.values()) or 'no weight or limit'}")
