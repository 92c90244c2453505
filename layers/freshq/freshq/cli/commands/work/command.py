"""The command `freshq work`."""

from __future__ import annotations

from freshq.cli.command import QueueContext
from freshq.cli.commands.work import options as option


def work(
    context: QueueContext,
    runner: option.RunnerName,
    concurrency: option.Concurrency = 3,
    transaction: option.Transaction = False,
    at_most_once: option.AtMostOnce = False,
    limit_lowest: option.LimitLowest = None,
    limit_highest: option.LimitHighest = None,
    rate_per_second: option.RatePerSecond = None,
    max_run_seconds: option.MaxRunSeconds = None,
    poll_seconds: option.PollSeconds = 0.5,
    drain_seconds: option.DrainSeconds = None,
    idle_exit_seconds: option.IdleExitSeconds = None,
    give_up_seconds: option.GiveUpSeconds = None,
    processes: option.Processes = 1,
    health_port: option.HealthPort = None,
    health_host: option.HealthHost = option.LOOPBACK,
    status_seconds: option.StatusSeconds = 10.0,
    dry_run: option.DryRun = False,
    supervised: option.Supervised = False,
) -> None:
    """Work the queue until SIGTERM or Ctrl-C: one lets running tasks finish, a second gives them back."""
    from freshq.cli.commands.work.job import Job, begin, concurrency_limit  # noqa: PLC0415 - loads the worker
    from freshq.worker.options import WorkerOptions  # noqa: PLC0415 - as above

    worker_options = WorkerOptions(
        concurrency=concurrency,
        limit=concurrency_limit(limit_lowest, limit_highest),
        rate_per_second=rate_per_second,
        poll_seconds=poll_seconds,
        idle_exit_seconds=idle_exit_seconds,
        max_run_seconds=max_run_seconds,
        give_up_seconds=give_up_seconds,
        at_most_once=at_most_once,
        transaction=transaction,
    )
    address = (health_host, health_port)
    job = Job(context.session, runner, worker_options, drain_seconds, address, status_seconds, supervised)
    begin(job, processes, dry_run=dry_run)
