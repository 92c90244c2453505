// A producer in Node, without packages: puts tasks over HTTP, and repeats a request until it is answered.
//
//     node producer.mjs http://127.0.0.1:8720 put 10000
//
// FRESHQ_TOKEN is the bearer token, if the server needs one.
import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";

const [base, mode = "put", argument = "100"] = process.argv.slice(2);
const REQUESTS_AT_A_TIME = 8;
const BATCH_TASKS = 25;
const authorization = process.env.FRESHQ_TOKEN ? { authorization: `Bearer ${process.env.FRESHQ_TOKEN}` } : {};

async function send({ method = "GET", path, headers = {}, body, text }) {
  const sent = body === undefined ? text : JSON.stringify(body);
  const type = body === undefined ? {} : { "content-type": "application/json" };
  const response = await fetch(base + path, { method, headers: { ...authorization, ...type, ...headers }, body: sent });
  return { status: response.status, headers: response.headers, answer: await response.json() };
}

// Each task has an id, so a request whose answer was lost can be sent again: no task is put twice.
async function put(tasks) {
  for (let pause = 50; ; pause = Math.min(2 * pause, 2000)) {
    try {
      const { status, headers, answer } = await send({ method: "POST", path: "/v1/batch", body: { tasks } });
      if (status === 200) return answer.receipts;
      if (status !== 429 && status < 500) throw new Error(`refused: ${JSON.stringify(answer)}`);
      await sleep(1000 * Number(headers.get("retry-after") ?? 1));
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // the server is away, or was killed before its answer
      await sleep(pause);
    }
  }
}

async function putMany(count) {
  const outcomes = { CREATED: 0, DUPLICATE: 0 };
  let next = 0;
  async function producer() {
    while (next < count) {
      const numbers = Array.from({ length: Math.min(BATCH_TASKS, count - next) }, () => next++);
      const tasks = numbers.map((number) => ({ task_id: `order-${number}`, payload: { number }, max_age_seconds: 3600 }));
      for (const receipt of await put(tasks)) outcomes[receipt.outcome]++;
    }
  }
  await Promise.all(Array.from({ length: REQUESTS_AT_A_TIME }, producer));
  console.log(JSON.stringify(outcomes));
}

// Sends requests from a file, and compares the answers.
async function compare(file) {
  for (const { name, request, status, answer } of JSON.parse(await readFile(file, "utf8"))) {
    const found = await send(request);
    const differs = Object.keys(answer).filter((key) => JSON.stringify(found.answer[key]) !== JSON.stringify(answer[key]));
    if (found.status !== status || differs.length) {
      console.log(`${name}: ${found.status} ${JSON.stringify(found.answer)}`);
      process.exitCode = 1;
    }
  }
}

await (mode === "put" ? putMany(Number(argument)) : compare(argument));
