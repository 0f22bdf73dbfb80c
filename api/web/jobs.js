// Training jobs and the work that is under way.
import { html, useState } from "./elements.js";
import { adjust, linkTo } from "./address.js";
import { DRIFTED, Drift, Job, Key } from "./job.js";
import { useLoaded, useRefreshed, useSettled } from "./loading.js";
import { milliseconds, moment } from "./numbers.js";
import { ANSWERS } from "./packs.js";
import { usePages } from "./pages.js";
import { Copyable, Empty, Entry, Field, ProblemNote, Table, Waiting } from "./parts.js";
import { getJson, remove } from "./service.js";

// Where an answer is shown: the tab, and the name of its id in the address.
const VIEWS = { schedule: ["result", "schedule"], graph: ["result", "graph"], order: ["order", "check"], ...ANSWERS };
const viewOf = ({ kind, location: path }) => linkTo(VIEWS[kind][0], { [VIEWS[kind][1]]: path.split("/").pop() });

const REFRESH_MS = 5000;

export function Jobs({ values, usage }) {
  const mayDelete = usage?.scopes.includes("admin");
  const tasks = html`<${Tasks} mayCancel=${usage?.scopes.includes("submit")} />`;
  // Only admins may list keys; others see their ids.
  const keys = useLoaded(async (signal) => new Map(mayDelete ? (await getJson("v1/keys?limit=1000", signal)).items.map(({ id, name }) => [id, name]) : []), [mayDelete]);
  const names = keys.value || new Map();
  return values.job ? html`<${Job} key=${values.job} job=${values.job} mayDelete=${mayDelete} names=${names} />${tasks}` : html`<div class="pair"><${List} values=${values} names=${names} />${tasks}</div>`;
}

function List({ values, names }) {
  const asked = useSettled({ contains: values.contains || "", order: values.order || "newest", reverse: values.reverse || "", drifted: values.drifted || "", by: values.by || "", since: values.since || "", until: values.until || "" });
  const jobs = usePages("v1/jobs", {
    limit: 20, order: asked.order, reverse: asked.reverse && "true", contains: asked.contains, min_drift: asked.drifted && DRIFTED,
    asked_by: asked.by, since: midnight(asked.since, 0), before: midnight(asked.until, 1),
  }, "jobs");
  useRefreshed(jobs, REFRESH_MS);
  const { items, value } = jobs;
  const narrowed = asked.contains || asked.drifted || asked.by || asked.since || asked.until;
  const all = { contains: "", drifted: "", by: "", since: "", until: "" };
  const order = ({ by, descending }) => adjust({ order: by, reverse: descending === (by !== "name") ? "" : "1" });
  return html`<section class="card" aria-labelledby="jobs-title">
    <div class="row between"><h2 id="jobs-title">Jobs</h2>
      <div class="row">
        <${Field} id="contains" label="Name contains"><${Entry} id="contains" type="search" value=${values.contains || ""} onInput=${(event) => adjust({ contains: event.target.value })} /><//>
        ${names.size > 0 && html`<${Field} id="by" label="Requested by"><select id="by" class="short" value=${values.by || ""} onChange=${(event) => adjust({ by: event.target.value })}>
          <option value="">all keys</option>${[...names].map(([id, name]) => html`<option value=${id}>${name}</option>`)}</select><//>`}
        ${[["since", "Last request from"], ["until", "to"]].map(([name, label]) => html`<${Field} id=${name} label=${label}>
          <${Entry} id=${name} type="date" value=${values[name] || ""} onChange=${(event) => adjust({ [name]: event.target.value })} /><//>`)}
        <label class="switch"><input type="checkbox" role="switch" checked=${values.drifted === "1"} onChange=${(event) => adjust({ drifted: event.target.checked ? "1" : "" })} /> Only drifted by ${`${DRIFTED * 100} %`} or more</label>
      </div></div>
    <${ProblemNote} error=${jobs.error} retry=${jobs.again} />
    ${!value && !jobs.error && html`<${Waiting} what="jobs" rows=${6} />`}
    ${value && !items.length && (narrowed ? html`<${Empty} title=${asked.drifted ? "No job has drifted" : "No job fits"}>
        <p>${asked.since && asked.until && asked.since > asked.until && "The first day is after the last one. "}${asked.drifted && `None of these jobs measures iterations that are ${`${DRIFTED * 100} %`} or more off its prediction.`} <button type="button" onClick=${() => adjust(all)}>Show all jobs</button></p><//>`
      : html`<${Empty} title="No job has requested a schedule yet"><p>A training job appears here when it requests a schedule under its name. Give it these two variables:</p>
        <${Copyable} text=${`PACE_URL=${location.origin} PACE_JOB=NAME`} label="Variables for a training job" /><//>`)}
    ${items.length > 0 && html`<${Table} caption="Jobs" rows=${items} rowKey=${({ job }) => job} columns=${jobColumns(names)}
      first=${asked.order} descending=${(asked.order !== "name") !== Boolean(asked.reverse)} onOrder=${order} />`}
    <div class="row between">${jobs.pager || html`<span></span>`}<span class="faint">Refreshes by itself every ${REFRESH_MS / 1000} s.</span></div>
  </section>`;
}

// The moment at which a day of this browser's zone begins, or one so many days later.
function midnight(day, later) {
  const [year, month, date] = day.split("-").map(Number);
  return date ? new Date(year, month - 1, date + later).toISOString() : "";
}

const jobColumns = (names) => [
  { name: "name", title: "Job", sorts: "ascending", show: ({ job }) => html`<a class="name" href=${linkTo("jobs", { job })}>${job}</a>` },
  { name: "drift", title: "Measured against predicted", sorts: "descending", show: (row) => html`<${Drift} row=${row} />`, numeric: true },
  { name: "measured", title: "Measured", sorts: "descending", show: (row) => milliseconds(row.measured_iteration_s), numeric: true },
  { name: "predicted", title: "Predicted", sorts: "descending", show: (row) => milliseconds(row.predicted_iteration_s), numeric: true },
  { name: "newest", moment: true, title: "Last request", sorts: "descending", show: (row) => moment(row.asked_at) },
  { name: "schedules", title: "Schedules", sorts: "descending", show: (row) => row.num_schedules, numeric: true },
  { name: "by", title: "Requested by", show: (row) => html`<${Key} id=${row.asked_by} names=${names} />` },
];

const LIVE = ["queued", "running"];

function Tasks({ mayCancel }) {
  const [failure, setFailure] = useState(null);
  // What runs may be older than what ended last.
  const tasks = useLoaded(async (signal) => {
    const pages = await Promise.all(["state=running&limit=200", "state=queued&limit=200", "limit=50"].map((asked) => getJson(`v1/tasks?${asked}`, signal)));
    return { items: [...new Map(pages.flatMap(({ items }) => items).map((task) => [task.id, task])).values()] };
  }, []);
  const { value, error, again } = tasks;
  const items = value?.items || [];
  const under = items.filter(({ state }) => LIVE.includes(state));
  const ended = items.filter(({ state }) => !LIVE.includes(state));
  const live = under.length;
  useRefreshed(tasks, live ? 1000 : REFRESH_MS);
  const cancel = async (id) => {
    setFailure(null);
    try {
      await remove(`v1/tasks/${id}`);
    } catch (problem) {
      if (problem.kind !== "finished") setFailure(problem);
    }
    again();
  };
  const columns = [
    { name: "kind", title: "Work", value: ({ kind }) => (kind === "graph-grid" ? "graph what-if" : kind) },
    { name: "name", title: "Of", value: ({ name }) => name, show: ({ name }) => html`<span class="name">${name || "–"}</span>` },
    { name: "state", title: "State", value: ({ state }) => state, show: ({ state, num_done: done, num_total: total, problem }) => html`<span class=${state === "failed" ? "bad-text" : ""}>${state}${state === "running" && total ? ` ${done || 0} of ${total}` : ""}</span>${
      problem && state === "failed" ? html` <span class="faint name">${problem.detail.split("\n")[0]}</span>` : ""}` },
    { name: "created", moment: true, title: "Accepted", value: (row) => row.created_at, show: (row) => moment(row.created_at) },
    { name: "seconds", title: "Took", value: (row) => (row.finished_at ? Date.parse(row.finished_at) - Date.parse(row.started_at || row.created_at) : null), show: (row) => (row.finished_at && row.started_at ? `${((Date.parse(row.finished_at) - Date.parse(row.started_at)) / 1000).toFixed(1)} s` : "–"), numeric: true },
    { name: "action", title: "", show: (row) => (mayCancel && LIVE.includes(row.state) ? html`<button type="button" onClick=${() => cancel(row.id)} aria-label=${`Cancel the ${row.kind} of ${moment(row.created_at)}`}>Cancel</button>`
      : row.state === "done" && VIEWS[row.kind] ? html`<a href=${viewOf(row)}>Open</a>` : "") },
  ];
  return html`<section class="card" aria-labelledby="tasks-title">
    <h2 id="tasks-title">Work under way${live ? `: ${live}` : ""}</h2>
    <${ProblemNote} error=${error || failure} retry=${again} />
    ${!value && !error && html`<${Waiting} what="tasks" />`}
    ${value && !value.items.length && html`<${Empty} title="Nothing was requested yet"><p>Solves, what-ifs and predictions appear here while they run, and can be cancelled.</p><//>`}
    ${items.length > 0 && !live && html`<p class="faint">Nothing runs or waits.</p>`}
    ${live > 0 && html`<${Table} caption="Tasks under way" first="created" descending=${true} rows=${under} rowKey=${({ id }) => id} columns=${columns} pageSize=${10} />`}
    ${ended.length > 0 && html`<h3>Ended last</h3><${Table} caption="Tasks" first="created" descending=${true} rows=${ended} rowKey=${({ id }) => id} columns=${columns} pageSize=${10} />`}
  </section>`;
}
