// Training jobs and the work that is under way.
import { html, useEffect, useState } from "./elements.js";
import { adjust, linkTo } from "./address.js";
import { Drift, Job, drift } from "./job.js";
import { useLoaded, useSettled } from "./loading.js";
import { milliseconds, moment } from "./numbers.js";
import { Empty, Entry, Field, ProblemNote, Table } from "./parts.js";
import { getJson, remove } from "./service.js";

export function Jobs({ values, usage }) {
  const mayDelete = usage?.scopes.includes("admin");
  return html`${values.job ? html`<${Job} key=${values.job} job=${values.job} mayDelete=${mayDelete} />` : html`<${List} values=${values} />`}
    <${Tasks} mayCancel=${usage?.scopes.includes("submit")} />`;
}

function List({ values }) {
  const [trail, setTrail] = useState([]);
  const asked = useSettled({ contains: values.contains || "", order: values.order || "newest" });
  const cursor = trail[trail.length - 1];
  const { value, error, again, busy } = useLoaded((signal) => {
    const query = new URLSearchParams({ limit: "20", order: asked.order });
    if (asked.contains) query.set("contains", asked.contains);
    if (cursor) query.set("cursor", cursor);
    return getJson(`v1/jobs?${query}`, signal);
  }, [JSON.stringify(asked), cursor]);
  const search = (changes) => { setTrail([]); adjust(changes); };
  return html`<section class="card" aria-labelledby="jobs-title">
    <div class="row between"><h2 id="jobs-title">Jobs</h2>
      <div class="row">
        <${Field} id="contains" label="Name contains"><${Entry} id="contains" type="search" value=${values.contains || ""} onInput=${(event) => search({ contains: event.target.value })} /><//>
        <${Field} id="order" label="Order"><select id="order" value=${values.order || "newest"} onChange=${(event) => search({ order: event.target.value })}>
          <option value="newest">Last request</option><option value="name">By name</option></select><//>
      </div></div>
    <${ProblemNote} error=${error} retry=${again} />
    ${value && !value.items.length && html`<${Empty} title=${asked.contains ? "No job has this name" : "No job has requested a schedule yet"}>
      ${!asked.contains && html`<p>A training job appears here when it requests a schedule under its name: <code>PACE_URL=${location.origin} PACE_JOB=NAME</code>.</p>`}<//>`}
    ${value?.items.length > 0 && html`<${Table} caption="Jobs" rows=${value.items} rowKey=${({ job }) => job} columns=${JOB_COLUMNS} />`}
    ${(trail.length > 0 || value?.next) && html`<div class="pager">
      <button type="button" disabled=${!trail.length} onClick=${() => setTrail(trail.slice(0, -1))}>Previous jobs</button>
      <span role="status">Page ${trail.length + 1}</span>
      <button type="button" disabled=${!value?.next || busy} onClick=${() => setTrail([...trail, value.next])}>Next jobs</button></div>`}
  </section>`;
}

const JOB_COLUMNS = [
  { name: "job", title: "Job", show: ({ job }) => html`<a class="name" href=${linkTo("jobs", { job })}>${job}</a>` , value: ({ job }) => job },
  { name: "schedules", title: "Schedules", value: (row) => row.num_schedules, numeric: true },
  { name: "asked", moment: true, title: "Last request", value: (row) => row.asked_at, show: (row) => moment(row.asked_at) },
  { name: "by", title: "By", value: (row) => row.asked_by || "", show: (row) => html`<code>${row.asked_by || "–"}</code>` },
  { name: "predicted", title: "Predicted", value: (row) => row.predicted_iteration_s, show: (row) => milliseconds(row.predicted_iteration_s), numeric: true },
  { name: "measured", title: "Measured", value: (row) => row.measured_iteration_s, show: (row) => milliseconds(row.measured_iteration_s), numeric: true },
  { name: "drift", title: "Measured against predicted", value: drift, show: (row) => html`<${Drift} row=${row} />`, numeric: true },
];

const LIVE = ["queued", "running"];

function Tasks({ mayCancel }) {
  const [round, setRound] = useState(0);
  const [failure, setFailure] = useState(null);
  const { value, error, again } = useLoaded((signal) => getJson("v1/tasks?limit=50", signal), [round]);
  const live = (value?.items || []).filter(({ state }) => LIVE.includes(state)).length;
  useEffect(() => {
    const timer = setTimeout(() => { if (!document.hidden) setRound((number) => number + 1); }, live ? 1000 : 5000);
    return () => clearTimeout(timer);
  }, [value]);
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
    { name: "kind", title: "Work", value: ({ kind }) => kind },
    { name: "state", title: "State", value: ({ state }) => state, show: ({ state, num_done: done, num_total: total, problem }) => html`<span class=${state === "failed" ? "bad-text" : ""}>${state}${state === "running" && total ? ` ${done || 0} of ${total}` : ""}</span>${
      problem && state === "failed" ? html`<span class="faint"> ${problem.detail.slice(0, 120)}</span>` : ""}` },
    { name: "created", moment: true, title: "Accepted", value: (row) => row.created_at, show: (row) => moment(row.created_at) },
    { name: "seconds", title: "Took", value: (row) => (row.finished_at ? Date.parse(row.finished_at) - Date.parse(row.started_at || row.created_at) : null), show: (row) => (row.finished_at && row.started_at ? `${((Date.parse(row.finished_at) - Date.parse(row.started_at)) / 1000).toFixed(1)} s` : "–"), numeric: true },
    { name: "action", title: "", show: (row) => (mayCancel && LIVE.includes(row.state) ? html`<button type="button" onClick=${() => cancel(row.id)} aria-label=${`Cancel the ${row.kind} of ${moment(row.created_at)}`}>Cancel</button>`
      : row.state === "done" && row.kind === "schedule" ? html`<a href=${linkTo("result", { schedule: row.location.split("/").pop() })}>Open</a>`
      : row.state === "done" && row.kind === "prediction" ? html`<a href=${linkTo("servers", { prediction: row.location.split("/").pop() })}>Open</a>` : "") },
  ];
  return html`<section class="card" aria-labelledby="tasks-title">
    <h2 id="tasks-title">Work under way${live ? `: ${live}` : ""}</h2>
    <${ProblemNote} error=${error || failure} retry=${again} />
    ${value && !value.items.length && html`<${Empty} title="Nothing was requested yet" />`}
    ${value?.items.length > 0 && html`<${Table} caption="Tasks" first="created" descending=${true} rows=${value.items} rowKey=${({ id }) => id} columns=${columns} pageSize=${10} />`}
  </section>`;
}
