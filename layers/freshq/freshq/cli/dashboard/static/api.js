// Calls of the dashboard's own server. Each carries the token, which the address has in its fragment.

const KEPT = "freshq-token";
const HEADER = "X-Freshq-Token";
export class NoToken extends Error {}

/** Take the token out of the address, so that it is in no history and on no screenshot. */
export function takeToken() {
  const given = tokenIn(location.hash);
  if (given) {
    sessionStorage.setItem(KEPT, given);
    history.replaceState(null, "", location.pathname + location.search);
  }
}

/** Keep the token of an address, or a token by itself. */
export function keepToken(text) {
  sessionStorage.setItem(KEPT, tokenIn(text) || text.trim());
}

const tokenIn = (text) => /token=([\w-]+)/.exec(text)?.[1] ?? "";

async function call(path, options = {}) {
  const headers = { [HEADER]: sessionStorage.getItem(KEPT) ?? "", ...options.headers };
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (answer.status === 401) throw new NoToken();
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? `status ${answer.status}`);
  return answer;
}

/** The queue that the address of the page names; null for the first page. */
export const queueName = () => new URLSearchParams(location.search).get("queue");

function pathOf(path, parameters = {}) {
  const name = queueName();
  return `/api/${path}?${new URLSearchParams(name === null ? parameters : { ...parameters, queue: name })}`;
}

export const read = async (path, parameters = {}) => (await call(pathOf(path, parameters))).json();

export const change = async (verb, of = {}) =>
  (await (await call(pathOf("do"), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ verb, ...of }),
  })).json()).said;

/** Call a function with each server-sent event, until the stream ends. EventSource cannot send the token. */
export async function follow(onEvent) {
  const answer = await call(pathOf("live"));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const fields = Object.fromEntries(text.slice(0, end).split("\n").map((line) => line.split(/: (.*)/s)));
      text = text.slice(end + 2);
      if (fields.data) onEvent(fields.event, JSON.parse(fields.data));
    }
  }
}
