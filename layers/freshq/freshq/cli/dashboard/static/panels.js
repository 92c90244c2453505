// The figures, tables and bars of a snapshot.

import { trendOf } from "./chart.js";
import { byId, count, fill, make, named, percent, plural, rate, row, rows, say, short, span, track } from "./format.js";

const FATES = [["SUCCESS", "success", "done"], ["SHED", "shed", "shed"], ["FAILURE", "failure", "failed"],
  ["CANCELLED", "cancelled", "cancelled"], ["TAKEN", "taken", "in work"], ["PENDING", "pending", "waiting"]];

/** Return a number of the queue's own counts, with its bound if it is one. */
function counted(stats, name) {
  const bound = stats.bounded[name];
  if (bound === "not counted") return "–";
  return `${bound === "at least" ? "≥ " : bound === "at most" ? "≤ " : ""}${count(stats[name])}`;
}

/** Make the button that shows a task. */
export function taskLink(id, show) {
  const link = make("button", { type: "button", className: "link", onclick: () => show(id) }, id);
  link.title = id;
  link.dataset.key = `task ${id}`;
  return link;
}

export function showFigures(snapshot) {
  const { stats, rates } = snapshot;
  say("waiting", counted(stats, "pending"));
  say("ages", stats.pending ? `${span(stats.newest_pending_seconds)} to ${span(stats.oldest_pending_seconds)} old` : "none");
  say("taken", counted(stats, "taken"));
  say("delayed", `${counted(stats, "delayed")} delayed`);
  say("offered", rate(rates.offered));
  say("served", rate(rates.served));
  say("shed", rates.shed === null ? "–" : rate(rates.shed));
  const { offered, delivered, lost } = snapshot.value;
  byId("value-tile").hidden = offered === null;
  say("value", rate(delivered));
  say("value-note", `per second of ${rate(offered)} offered; ${percent(lost)} lost`);
  const forecast = Object.entries(snapshot.forecast);
  say("in-time", percent(snapshot.probability_in_time));
  say("in-time-note", snapshot.paused ? "claims are suspended" : forecast.length ? "forecast for tasks put next" : "of recent tasks");
  rows("forecast-rows", forecast.map(([name, line]) =>
    make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, line))), 2,
  snapshot.paused ? "none while claims are suspended" : "known once a task is done");
}

export function showPictureText(snapshot, queue) {
  const { marks, stats } = snapshot;
  say("mark-note", `1 mark = ${plural(marks.one_in, "task")}${marks.older ? `; ${plural(marks.older, "older task")} not shown` : ""}`);
  const deadline = queue.has_deadline ? ` The deadline is at ${span(queue.max_age_seconds)}.` : "";
  byId("stack").setAttribute("aria-label", stats.pending
    ? `${counted(stats, "pending")} waiting, the newest ${span(stats.newest_pending_seconds)}, the oldest ${span(stats.oldest_pending_seconds)} old.${deadline}`
    : `No waiting tasks.${deadline}`);
  let from = 0, below = 0;
  const bands = marks.by_age.map(([age, younger]) => {
    const band = row(`to ${age}`, make("td", {}, `${span(from)} to ${span(age)}`), make("td", { className: "number" }, count(younger - below)));
    from = age;
    below = younger;
    return band;
  });
  if (marks.older) bands.push(row("older", make("td", {}, "older"), make("td", { className: "number" }, count(marks.older))));
  rows("age-rows", bands, 2, "none");
}

export function showWaits(waits, queue) {
  say("waits-note", waits.tasks ? `${count(waits.tasks)} tasks sampled in the last minute` : "no claim seen yet");
  const longest = queue.has_deadline ? queue.max_age_seconds : Math.max(1, waits.p99_seconds ?? 1);
  const bars = [["median", waits.p50_seconds], ["9 in 10", waits.p90_seconds], ["99 in 100", waits.p99_seconds]];
  fill(byId("waits"), ...bars.map(([name, seconds]) =>
    make("li", {}, make("span", {}, name), track((seconds ?? 0) / longest, "taken"), make("b", {}, span(seconds)))));
}

export function showFates(survey) {
  say("fates-note", survey.complete ? `${count(survey.tasks)} stored tasks` : `${count(survey.tasks)} tasks so far, still counting`);
  const found = FATES.map(([status, fate, name]) => ({ fate, name, tasks: survey.by_status[status] ?? 0 })).filter((one) => one.tasks);
  fill(byId("fates-bar"), ...found.map(({ fate, tasks }) => {
    const part = make("span");
    part.dataset.fate = fate;
    part.style.flexGrow = tasks;
    return part;
  }));
  fill(byId("fates"), ...found.map(({ fate, name, tasks }) => {
    const item = make("li", {}, `${name} ${count(tasks)}${survey.tasks ? ` (${percent(tasks / survey.tasks)})` : ""}`);
    item.dataset.fate = fate;
    return item;
  }));
  const reasons = Object.entries(survey.by_reason).sort((one, other) => other[1] - one[1]);
  say("reasons", reasons.length
    ? `Shed by reason: ${reasons.map(([reason, tasks]) => `${reason} ${count(tasks)}`).join(", ")}${
      survey.turned_away ? `; ${count(survey.turned_away)} of them rejected by admission control` : ""}.`
    : "No shed tasks.");
  const { value_delivered: delivered, value_lost: lost } = survey.value;
  byId("values").hidden = delivered === undefined;
  if (delivered !== undefined) say("values", `Value: ${rate(delivered)} delivered, ${rate(lost)} lost${delivered + lost ? ` (${percent(lost / (delivered + lost))})` : ""}.`);
}

export function showGroups({ rows: found, left_out: leftOut }) {
  say("groups-note", leftOut ? `and ${count(leftOut)} more` : "");
  const most = Math.max(1, ...found.map((group) => group.waiting));
  rows("group-rows", found.map((group) => row(`group ${group.group}`,
    make("td", { className: "all" }, group.group ?? "(none)", track(group.waiting / most),
      group.full ? make("span", { className: "note" }, group.full === group.group ? "at its limit" : `${group.full} at its limit`) : ""),
    named("weight", "number", String(group.weight)),
    named("waiting", "number", count(group.waiting)),
    named("in work", "number", count(group.held)),
    named("share of slots", "number", percent(group.share)))), 5, "no tasks waiting or in work");
}

export function showLeases(snapshot, queue, show) {
  const { leases } = snapshot;
  say("leases-note", snapshot.leases_read > leases.length ? `first ${leases.length} to expire, of ${count(snapshot.leases_read)}` : "");
  rows("lease-rows", leases.map((lease) => row(`lease ${lease.task_id}`,
    make("td", { className: "id all" }, taskLink(lease.task_id, show)),
    named("kind", "", short(lease.kind)),
    named("group", "", short(lease.group)),
    named("attempt", "number", count(lease.attempts)),
    named("held", "number", span(lease.held_seconds)),
    named("progress", "", ...progressOf(lease)),
    named("lease left", "", lease.left_seconds > 0 ? span(lease.left_seconds) : make("span", { className: "lapsed" }, `expired ${span(-lease.left_seconds)} ago`),
      track(lease.left_seconds / queue.lease_seconds, "taken")))), 7, "no tasks in work");
}

/** Say how far the run of a task is: a percentage that is rounded down, and what it does now. */
export function progressText({ progress_fraction: fraction, progress_step: step }) {
  return fraction === null ? "–" : `${Math.floor(Math.round(fraction * 1e6) / 1e4)} %${step === null ? "" : `, ${step}`}`;
}

function progressOf(task) {
  if (task.progress_fraction === null) return ["–"];
  const step = make("span", { className: "step", title: task.progress_step ?? "" }, progressText(task));
  return [step, track(task.progress_fraction, "success")];
}

/** List the queues in the tables; each opens its own page. */
export function showQueues(queues) {
  rows("queue-rows", queues.map(({ name, stats, offered, served, trend, ...queue }) => row(`queue ${name}`,
    make("td", { className: "all" }, make("a", { href: `?${new URLSearchParams({ queue: name })}` }, name)),
    make("td", {}, queue.paused ? "paused" : queue.overloaded ? "overloaded" : "live"),
    named("waiting", "number", counted(stats, "pending")),
    named("in work", "number", counted(stats, "taken")),
    named("offered per second", "number", rate(offered)),
    named("served per second", "number", rate(served)),
    named("recently in time", "number", percent(queue.probability_in_time)),
    named("dead letters", "number", counted(stats, "failure")),
    make("td", {}, trendOf(trend)))), 9, "no queues");
}
