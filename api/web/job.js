// One training job: its schedules over time, what was predicted and measured, and how that drifts.
import { html, useEffect, useMemo, useState } from "./elements.js";
import { linkTo } from "./address.js";
import { Curves } from "./curves.js";
import { useLoaded, useRefreshed } from "./loading.js";
import { count, milliseconds, moment, percent } from "./numbers.js";
import { Confirm, Empty, ProblemNote, Table, Waiting } from "./parts.js";
import { getJson, remove, resourcePath } from "./service.js";

const REFRESH_MS = 30_000;

export const drift = (row) => (row.measured_iteration_s && row.predicted_iteration_s ? row.measured_iteration_s / row.predicted_iteration_s - 1 : null);

// From this share on a job is said to have drifted; webhooks say so too (api/webhooks.py).
export const DRIFTED = 0.1;

function Share({ share }) {
  if (share === null) return html`<span class="faint">no report</span>`;
  const drifted = Math.abs(share) >= DRIFTED;
  return html`<span class=${drifted ? "bad-text" : ""}>${drifted && html`<span class="flag">${share > 0 ? "slower" : "faster"}</span>`}${percent(share, true)}</span>`;
}

// Who asked: the name of the key, where it is known.
export const Key = ({ id, names }) => (names.has(id) ? html`<span class="name" title=${id}>${names.get(id)}</span>` : html`<code>${id || "–"}</code>`);

export const Drift = ({ row }) => html`<${Share} share=${drift(row)} />`;

// Reports in the order of time, each with its distance from the first one under the same schedule.
function withDrift(reports) {
  let first = null;
  return [...reports].reverse().map((row) => {
    const same = first && first.profile_sha256 === row.profile_sha256 && first.predicted_iteration_s === row.predicted_iteration_s;
    if (!same) first = row;
    return { ...row, since: row.measured_iteration_s / first.measured_iteration_s - 1 };
  });
}

function Latest({ row }) {
  const won = row.plain_iteration_s ? row.measured_iteration_s / row.plain_iteration_s - 1 : null;
  return html`<dl class="numbers">
    <div><dt>Predicted</dt><dd>${milliseconds(row.predicted_iteration_s)}</dd></div>
    <div class="chief"><dt>Measured last</dt><dd>${milliseconds(row.measured_iteration_s)}</dd></div>
    <div><dt>Against predicted</dt><dd><${Drift} row=${row} /></dd></div>
    <div><dt>Since the schedule began</dt><dd><${Share} share=${row.since} /></dd></div>
    ${won !== null && html`<div><dt>Compared with no schedule</dt><dd>${percent(won, true)}</dd></div>`}
  </dl>`;
}

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

const known = new Map();

// The iteration time that a schedule predicts; a schedule never changes, so it is asked for once. `onKnown`: once it is there.
function Predicted({ id, onKnown }) {
  const { value, error } = useLoaded(async (signal) => {
    if (!known.has(id)) known.set(id, (await getJson(resourcePath("schedule", id), signal)).schedule.predicted.iteration_s);
    return known.get(id);
  }, [id]);
  useEffect(() => { if (value !== undefined) onKnown(); }, [value]);
  return error ? "–" : value === undefined ? html`<span class="faint">…</span>` : milliseconds(value);
}

export function Job({ job, mayDelete, names }) {
  const [asking, setAsking] = useState(null);
  const [failure, setFailure] = useState(null);
  const [, draw] = useState(0);
  const named = encodeURIComponent(job);
  const schedules = useLoaded((signal) => everyPage(`v1/schedules?job=${named}&limit=200`, 1000, signal), [job]);
  const reports = useLoaded((signal) => everyPage(`v1/reports?job=${named}&limit=500`, 2000, signal), [job]);
  const items = schedules.value || [];
  const told = useMemo(() => withDrift(reports.value || []), [reports.value]);
  // Where another schedule began.
  const changes = useMemo(() => told.filter((row, at) => at > 0 && (row.profile_sha256 !== told[at - 1].profile_sha256 || row.predicted_iteration_s !== told[at - 1].predicted_iteration_s))
    .map(({ created_at: at }) => ({ at: Date.parse(at) / 1000, label: "" })), [told]);
  const latest = new Map(told.map((row) => [row.profile_sha256, row]));
  useRefreshed(reports, REFRESH_MS);
  useRefreshed(schedules, REFRESH_MS);
  const newest = useMemo(() => [...items].sort((a, b) => (a.asked_at < b.asked_at ? 1 : -1)), [schedules.value]);
  // Reports name the profile: where two schedules share it, each one's own prediction tells them apart.
  const shared = (row) => items.filter(({ profile_sha256: sha256 }) => sha256 === row.profile_sha256).length > 1;
  const reportOf = (row) => {
    const found = latest.get(row.profile_sha256);
    return !found || !shared(row) || told.length === 0 ? found : told.filter((report) => report.profile_sha256 === row.profile_sha256 && report.predicted_iteration_s === known.get(row.id)).pop();
  };
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
    { name: "asked", moment: true, title: "Last request", value: (row) => row.asked_at, show: (row) => html`<a title=${`Solved ${moment(row.created_at)}`} href=${linkTo("result", { schedule: row.id })}>${moment(row.asked_at)}</a>` },
    { name: "predicted", title: "Predicted", show: (row) => (latest.has(row.profile_sha256) && !shared(row) ? milliseconds(latest.get(row.profile_sha256).predicted_iteration_s) : html`<${Predicted} id=${row.id} onKnown=${() => draw((number) => number + 1)} />`), numeric: true },
    { name: "measured", title: "Measured last", value: (row) => reportOf(row)?.measured_iteration_s, show: (row) => milliseconds(reportOf(row)?.measured_iteration_s), numeric: true },
    { name: "drift", title: "Against predicted", value: (row) => (reportOf(row) ? drift(reportOf(row)) : null), show: (row) => (reportOf(row) ? html`<${Drift} row=${reportOf(row)} />` : "–"), numeric: true },
    { name: "compare", title: "Compare with", moment: true, show: (row) => {
      const before = newest[newest.findIndex(({ id }) => id === row.id) + 1];
      return before ? html`<a href=${linkTo("compare", { a: before.id, b: row.id })}>the one before</a>` : html`<a href=${linkTo("compare", { a: row.id })}>a measured step</a>`;
    } },
    { name: "by", title: "Requested by", value: (row) => names.get(row.asked_by) || row.asked_by || "", show: (row) => html`<${Key} id=${row.asked_by} names=${names} />` },
    { name: "model", title: "Model", value: (row) => row.fingerprint, show: (row) => html`<code title=${row.fingerprint}>${row.fingerprint.slice(0, 12)}</code>` },
    { name: "profile", title: "Profile", value: (row) => row.profile_sha256, show: (row) => html`<a href=${linkTo("result", { profile: row.profile_sha256 })}><code>${row.profile_sha256.slice(0, 12)}</code></a>` },
    ...(mayDelete ? [{ name: "delete", title: "", show: (row) => html`<button type="button" class="danger" aria-label=${`Delete the schedule of ${moment(row.asked_at)}`} onClick=${() => setAsking(row.id)}>Delete</button>` }] : []),
  ];
  const reportColumns = [
    { name: "when", moment: true, title: "Reported", value: (row) => row.created_at, show: (row) => moment(row.created_at) },
    { name: "predicted", title: "Predicted", value: (row) => row.predicted_iteration_s, show: (row) => milliseconds(row.predicted_iteration_s), numeric: true },
    { name: "measured", title: "Measured", value: (row) => row.measured_iteration_s, show: (row) => milliseconds(row.measured_iteration_s), numeric: true },
    { name: "drift", title: "Against predicted", value: drift, show: (row) => html`<${Drift} row=${row} />`, numeric: true },
    { name: "since", title: "Since the schedule began", value: ({ since }) => since, show: ({ since }) => html`<${Share} share=${since} />`, numeric: true },
    { name: "plain", title: "Without the schedule", value: (row) => row.plain_iteration_s, show: (row) => milliseconds(row.plain_iteration_s), numeric: true },
    { name: "iterations", title: "Iterations", value: (row) => row.num_iterations, show: (row) => count(row.num_iterations), numeric: true },
  ];
  return html`<p><a href=${linkTo("jobs")}>All jobs</a></p>
  <section class="card" aria-labelledby="job-title">
    <div class="row between"><h2 id="job-title" class="name">${job}</h2>
      ${mayDelete && items.length > 0 && html`<button type="button" class="danger" onClick=${() => setAsking("all")}>Delete all schedules</button>`}</div>
    <${ProblemNote} error=${schedules.error || failure} retry=${schedules.again} />
    ${!schedules.value && !schedules.error && html`<${Waiting} what="schedules" />`}
    ${schedules.value && !items.length && html`<${Empty} title="This job has no schedules"><p>They were deleted, or no job has this name. It gets one when a job requests it with <code>PACE_JOB</code>.</p><//>`}
    ${items.length > 0 && html`<${Table} caption="Schedules" first="asked" descending=${true} rows=${items} rowKey=${({ id }) => id} columns=${columns} pageSize=${10} />`}
  </section>
  <section class="card" aria-labelledby="reports-title">
    <h2 id="reports-title">Predicted against measured</h2>
    <${ProblemNote} error=${reports.error} retry=${reports.again} />
    ${!reports.value && !reports.error && html`<${Waiting} what="reports" rows=${5} />`}
    ${reports.value && !told.length && html`<${Empty} title="No report yet"><p>The runtime reports iteration times after its first 50 iterations under a schedule.</p><//>`}
    ${told.length > 0 && html`<${Latest} row=${told[told.length - 1]} />
      ${told.length > 1 && html`<${Curves} label="Predicted and measured iteration times" x=${told.map(({ created_at: at }) => Date.parse(at) / 1000)} time=${true}
        xLabel="Reported" yLabel="Iteration, ms" height=${260} marks=${changes} series=${[
          { label: "Measured", values: told.map((row) => row.measured_iteration_s * 1e3) },
          { label: "Predicted", values: told.map((row) => row.predicted_iteration_s * 1e3), dash: [6, 4], steps: true },
          { label: "Without the schedule", values: told.map((row) => (row.plain_iteration_s == null ? null : row.plain_iteration_s * 1e3)) }]} />
      ${changes.length > 0 && html`<p class="faint">A vertical line marks the first report under another schedule.</p>`}
      <h3>Drift</h3>
      <${Curves} label="Drift of iteration times" x=${told.map(({ created_at: at }) => Date.parse(at) / 1000)} time=${true} xLabel="Reported" yLabel="Drift, %" height=${180} series=${[
          { label: "Against predicted", values: told.map((row) => 100 * drift(row)) },
          { label: "Since the schedule began", values: told.map(({ since }) => 100 * since), dash: [6, 4] }]} />`}
      <${Table} caption="Reports" first="when" descending=${true} rows=${told} rowKey=${({ id }) => id} columns=${reportColumns} pageSize=${10} />`}
  </section>
  ${asking && html`<${Confirm} title=${asking === "all" ? `Delete ${items.length > 1 ? `all ${count(items.length)} schedules` : "the schedule"} of ${job}?` : "Delete this schedule?"} action="Delete" onYes=${discard} onNo=${() => setAsking(null)}>
    <p>A running job keeps its schedule; its next start computes a new one. Profiles and reports stay.</p><//>`}`;
}
