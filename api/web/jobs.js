// Training jobs and the work that is under way.
import { html, useEffect, useState } from "./elements.js";
import { adjust, linkTo } from "./address.js";
import { Curves } from "./curves.js";
import { useLoaded, useSettled } from "./loading.js";
import { count, milliseconds, moment, percent } from "./numbers.js";
import { Confirm, Empty, Field, ProblemNote, Table } from "./parts.js";
import { getJson, remove } from "./service.js";

const drift = (row) => (row.measured_iteration_s && row.predicted_iteration_s ? row.measured_iteration_s / row.predicted_iteration_s - 1 : null);

function Drift({ row }) {
  const share = drift(row);
  if (share === null) return html`<span class="faint">no report</span>`;
  return html`<span class=${Math.abs(share) > 0.1 ? "bad-text" : ""}>${percent(share, true)}</span>`;
}

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
        <${Field} id="contains" label="Name contains"><input id="contains" type="search" value=${values.contains || ""} onInput=${(event) => search({ contains: event.target.value })} /><//>
        <${Field} id="order" label="Order"><select id="order" value=${values.order || "newest"} onChange=${(event) => search({ order: event.target.value })}>
          <option value="newest">Asked for last</option><option value="name">By name</option></select><//>
      </div></div>
    <${ProblemNote} error=${error} retry=${again} />
    ${value && !value.items.length && html`<${Empty} title=${asked.contains ? "No job has such a name" : "No job has asked for a schedule yet"}>
      ${!asked.contains && html`<p>A training job appears here when it asks under its name: <code>PACE_URL=${location.origin} PACE_JOB=NAME</code>.</p>`}<//>`}
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
  { name: "asked", moment: true, title: "Asked for last", value: (row) => row.asked_at, show: (row) => moment(row.asked_at) },
  { name: "by", title: "By", value: (row) => row.asked_by || "", show: (row) => html`<code>${row.asked_by || "–"}</code>` },
  { name: "predicted", title: "Predicted", value: (row) => row.predicted_iteration_s, show: (row) => milliseconds(row.predicted_iteration_s), numeric: true },
  { name: "measured", title: "Measured", value: (row) => row.measured_iteration_s, show: (row) => milliseconds(row.measured_iteration_s), numeric: true },
  { name: "drift", title: "Measured against predicted", value: drift, show: (row) => html`<${Drift} row=${row} />`, numeric: true },
];

async function everyPage(path, most, signal) {
  const items = [];
  for (let cursor = ""; items.length < most;) {
    const page = await getJson(`${path}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`, signal);
    items.push(...page.items);
    if (!page.next) break;
    cursor = page.next;
  }
  return items;
}

function Job({ job, mayDelete }) {
  const [asking, setAsking] = useState(null);
  const [failure, setFailure] = useState(null);
  const named = encodeURIComponent(job);
  const schedules = useLoaded((signal) => everyPage(`v1/schedules?job=${named}&limit=200`, 1000, signal), [job]);
  const reports = useLoaded((signal) => everyPage(`v1/reports?job=${named}&limit=500`, 2000, signal), [job]);
  const items = schedules.value || [];
  const told = [...(reports.value || [])].sort((a, b) => (a.created_at < b.created_at ? -1 : 1));
  const doomed = asking === "all" ? items : items.filter(({ id }) => id === asking);
  const discard = async () => {
    setAsking(null);
    setFailure(null);
    try {
      for (const { id } of doomed) await remove(`v1/schedules/${id}`);
    } catch (error) {
      setFailure(error);
    }
    schedules.again();
  };
  const columns = [
    { name: "asked", moment: true, title: "Asked for last", value: (row) => row.asked_at, show: (row) => html`<a href=${linkTo("result", { schedule: row.id })}>${moment(row.asked_at)}</a>` },
    { name: "solved", moment: true, title: "Solved", value: (row) => row.created_at, show: (row) => moment(row.created_at) },
    { name: "by", title: "By", value: (row) => row.asked_by || "", show: (row) => html`<code>${row.asked_by || "–"}</code>` },
    { name: "model", title: "Model", value: (row) => row.fingerprint, show: (row) => html`<code title=${row.fingerprint}>${row.fingerprint.slice(0, 12)}</code>` },
    { name: "profile", title: "Profile", value: (row) => row.profile_sha256, show: (row) => html`<a href=${linkTo("result", { profile: row.profile_sha256 })}><code>${row.profile_sha256.slice(0, 12)}</code></a>` },
    ...(mayDelete ? [{ name: "delete", title: "", show: (row) => html`<button type="button" class="danger" aria-label=${`Delete the schedule of ${moment(row.asked_at)}`} onClick=${() => setAsking(row.id)}>Delete</button>` }] : []),
  ];
  const reportColumns = [
    { name: "when", moment: true, title: "Reported", value: (row) => row.created_at, show: (row) => moment(row.created_at) },
    { name: "predicted", title: "Predicted", value: (row) => row.predicted_iteration_s, show: (row) => milliseconds(row.predicted_iteration_s), numeric: true },
    { name: "measured", title: "Measured", value: (row) => row.measured_iteration_s, show: (row) => milliseconds(row.measured_iteration_s), numeric: true },
    { name: "drift", title: "Against predicted", value: drift, show: (row) => html`<${Drift} row=${row} />`, numeric: true },
    { name: "plain", title: "Without the schedule", value: (row) => row.plain_iteration_s, show: (row) => milliseconds(row.plain_iteration_s), numeric: true },
    { name: "iterations", title: "Iterations", value: (row) => row.num_iterations, show: (row) => count(row.num_iterations), numeric: true },
  ];
  return html`<p><a href=${linkTo("jobs")}>All jobs</a></p>
  <section class="card" aria-labelledby="job-title">
    <div class="row between"><h2 id="job-title" class="name">${job}</h2>
      ${mayDelete && items.length > 0 && html`<button type="button" class="danger" onClick=${() => setAsking("all")}>Delete all schedules</button>`}</div>
    <${ProblemNote} error=${schedules.error || failure} retry=${schedules.again} />
    ${schedules.value && !items.length && html`<${Empty} title="This job has no schedules" />`}
    ${items.length > 0 && html`<${Table} caption="Schedules" first="asked" descending=${true} rows=${items} rowKey=${({ id }) => id} columns=${columns} pageSize=${10} />`}
  </section>
  <section class="card" aria-labelledby="reports-title">
    <h2 id="reports-title">Predicted against measured</h2>
    <${ProblemNote} error=${reports.error} retry=${reports.again} />
    ${reports.value && !told.length && html`<${Empty} title="No report yet"><p>The runtime reports what iterations take once it has settled on a schedule.</p><//>`}
    ${told.length > 0 && html`
      ${told.length > 1 && html`<${Curves} label="Predicted and measured iteration times" x=${told.map(({ created_at: at }) => Date.parse(at) / 1000)} time=${true}
        xLabel="Reported" yLabel="Iteration, ms" height=${240} series=${[
          { label: "Measured", values: told.map((row) => row.measured_iteration_s * 1e3) },
          { label: "Predicted", values: told.map((row) => row.predicted_iteration_s * 1e3), dash: [6, 4] },
          { label: "Without the schedule", values: told.map((row) => (row.plain_iteration_s == null ? null : row.plain_iteration_s * 1e3)) }]} />`}
      <${Table} caption="Reports" first="when" descending=${true} rows=${told} rowKey=${({ id }) => id} columns=${reportColumns} pageSize=${10} />`}
  </section>
  ${asking && html`<${Confirm} title=${asking === "all" ? `Delete all ${items.length} schedules of ${job}?` : "Delete this schedule?"} action="Delete" onYes=${discard} onNo=${() => setAsking(null)}>
    <p>A job that follows one keeps it while it runs; the next start is solved anew. Profiles and reports stay.</p><//>`}`;
}

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
    ${value && !value.items.length && html`<${Empty} title="Nothing was asked for yet" />`}
    ${value?.items.length > 0 && html`<${Table} caption="Tasks" first="created" descending=${true} rows=${value.items} rowKey=${({ id }) => id} columns=${columns} pageSize=${10} />`}
  </section>`;
}
