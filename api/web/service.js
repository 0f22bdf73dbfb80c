// Speaks to the service, and only under v1/: problems become errors, tasks are followed through their events.

import { archive } from "./archive.js";

const KEY = "pace.key";
const ID_DIGITS = { profile: 64 };
const listeners = new Set();
let reachable = true;
let watching = false;

export class Problem extends Error {
  constructor(document, status) {
    super(document.detail || document.title || `The service answered ${status}.`);
    this.status = status;
    this.title = document.title || "Problem";
    this.kind = (document.type || "").split(":").pop();
    this.requestId = document.request_id;
  }
}

export class Unreachable extends Error {
  constructor() {
    super("The service does not answer.");
    this.title = "No connection";
    this.kind = "unreachable";
  }
}

// An id comes from the address, where anything may stand: in a path it could lead to another resource.
export function checkId(kind, id) {
  if (new RegExp(`^[0-9a-f]{${ID_DIGITS[kind] || 32}}$`).test(id)) return id;
  const shown = id.length > 80 ? `${id.slice(0, 80)}…` : id;
  throw new Problem({ title: "Not found", detail: `There is no ${kind.replace("-", " ")} “${shown}”. The link is incomplete or was changed.` }, 404);
}

export const resourcePath = (kind, id) => `v1/${kind}s/${checkId(kind, id)}`;

export const getKey = () => sessionStorage.getItem(KEY) || "";

export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

// Tells whether the service answers, whenever that changes.
export function onReachable(listener) {
  listeners.add(listener);
  listener(reachable);
  return () => listeners.delete(listener);
}

function setReachable(now) {
  if (now === reachable) return;
  reachable = now;
  for (const listener of listeners) listener(now);
}

async function watchUntilBack() {
  if (watching) return;
  watching = true;
  setReachable(false);
  for (let pause = 500; ; pause = Math.min(2 * pause, 4000)) {
    await new Promise((resolve) => setTimeout(resolve, pause));
    try {
      const answer = await fetch("v1/usage", { headers: headers(), cache: "no-store" });
      if (answer.status < 500) break;
    } catch {
      // not yet
    }
  }
  watching = false;
  setReachable(true);
}

function headers(more = {}) {
  const key = getKey();
  return { Accept: "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}), ...more };
}

export async function ask(path, { method = "GET", body, more, signal } = {}) {
  let answer;
  try {
    answer = await fetch(path.replace(/^\//, ""), {
      method, body, signal, headers: headers(more), cache: "no-cache",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    watchUntilBack();
    throw new Unreachable();
  }
  if (!answer.ok) {
    let document = {};
    try {
      document = await answer.json();
    } catch {
      // a proxy's words, not the service's
    }
    if ([502, 503, 504].includes(answer.status) && !document.type) {
      watchUntilBack();
      throw new Unreachable();
    }
    const problem = new Problem(document, answer.status);
    if (answer.status === 401) dispatchEvent(new CustomEvent("pace-key-needed", { detail: problem }));
    throw problem;
  }
  return answer;
}

export const getJson = async (path, signal) => (await ask(path, { signal })).json();

export async function postJson(path, document, { signal, prefer } = {}) {
  const more = { "Content-Type": "application/json", ...(prefer ? { Prefer: prefer } : {}) };
  return (await ask(path, { method: "POST", body: JSON.stringify(document), more, signal })).json();
}

// What is gone already, as another tab may have deleted it, is as it should be.
export async function remove(path) {
  try {
    await ask(path, { method: "DELETE" });
  } catch (error) {
    if (error.status !== 404) throw error;
  }
}

// Which questions somebody on this page still waits for, and which this page gave up.
const wanted = new Map();
const givenUp = new Set();

// Asks for work that may take long, follows its task, and returns the result.
// `progress` is called with the task; when `signal` aborts, the task is cancelled too.
export async function postTask(path, document, { signal, progress = () => {} } = {}) {
  signal?.throwIfAborted();
  const body = JSON.stringify(document);
  const question = `${path} ${body}`;
  wanted.set(question, (wanted.get(question) || 0) + 1);
  // Not aborted itself: until it is answered nobody knows the task that would have to be cancelled.
  const more = { "Content-Type": "application/json", Prefer: "wait=1" };
  const posted = ask(path, { method: "POST", body, more })
    .then(async (answer) => ({ unfinished: answer.status === 202, content: await answer.json() }));
  const cancel = async () => {
    const { unfinished, content } = await posted;
    if (!unfinished || wanted.get(question)) return; // done, or asked again meanwhile
    givenUp.add(question);
    await ask(`v1/tasks/${content.id}`, { method: "DELETE" });
  };
  try {
    const { unfinished, content } = await (signal ? Promise.race([posted, aborted(signal)]) : posted);
    if (!unfinished) return content;
    const task = await followTask(content, { signal, progress });
    if (task.problem) throw new Problem(task.problem, task.problem.status);
    return await getJson(task.location, signal);
  } catch (error) {
    // Asked again while its first task was being cancelled: that cancellation was not meant for this one.
    const again = error.kind === "cancelled" && givenUp.delete(question);
    if (!again) throw error;
  } finally {
    wanted.set(question, wanted.get(question) - 1);
    if (!wanted.get(question)) wanted.delete(question);
    if (signal?.aborted) cancel().catch(() => {});
  }
  return postTask(path, document, { signal, progress });
}

const aborted = (signal) => new Promise((_, reject) => {
  signal.addEventListener("abort", () => reject(new DOMException("superseded", "AbortError")), { once: true });
});

const live = (task) => task.state === "queued" || task.state === "running";

export async function followTask(task, { signal, progress }) {
  let current = task;
  progress(current);
  while (live(current)) {
    try {
      const answer = await ask(`v1/tasks/${task.id}/events`, { signal, more: { Accept: "text/event-stream" } });
      for await (const event of readEvents(answer.body)) {
        current = JSON.parse(event);
        progress(current);
      }
    } catch (error) {
      // A stream may break off with the service: it is asked again until it answers.
      if (error.name === "AbortError" || error instanceof Problem) throw error;
    }
    if (!live(current)) break;
    await new Promise((resolve) => setTimeout(resolve, 500));
    if (signal?.aborted) throw new DOMException("superseded", "AbortError");
    try {
      current = await getJson(`v1/tasks/${task.id}`, signal);
    } catch (error) {
      if (!(error instanceof Unreachable)) throw error;
    }
  }
  return current;
}

// Yields the data of server-sent events; fetch is used because EventSource sends no key.
async function* readEvents(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text = (text + value).replaceAll("\r\n", "\n");
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim());
      if (data.length) yield data.join("\n");
    }
  }
}

// Sends a file as it is, several as an archive; what is large is compressed on the way unless it is already.
export async function importFiles(files, values, signal) {
  const [first] = files;
  const together = files.length > 1;
  const question = new URLSearchParams({ filename: together ? `${files.length} files` : first.name.slice(-200) || "file" });
  for (const [name, value] of Object.entries(values)) if (value !== "" && value != null) question.set(name, value);
  const more = { "Content-Type": "application/octet-stream" };
  let body = together ? archive(files) : first;
  if (body.size > 2 ** 20 && !files.every(({ name }) => /\.(gz|tgz|zip|zst)$/i.test(name))) {
    body = await new Response(body.stream().pipeThrough(new CompressionStream("gzip"))).blob();
    more["Content-Encoding"] = "gzip";
  }
  return (await ask(`v1/imports?${question}`, { method: "POST", body, more, signal })).json();
}

// The same profile with updates that wait for the norm of all gradients, or that do not: its id.
const variants = new Map();
export async function profileWith(profileId, update, signal) {
  const known = variants.get(`${profileId} ${update}`);
  if (known) return known;
  const { profile } = await getJson(resourcePath("profile", profileId), signal);
  let id = profileId;
  if ((profile.update || "per-gradient") !== update) {
    id = (await postJson("v1/profiles", { ...profile, update }, { signal })).id;
  }
  variants.set(`${profileId} ${update}`, id);
  return id;
}
