// Two schedules, or a schedule and a step that a job measured: one time axis, numbers side by side, and what changed.
import { html, useEffect, useMemo, useRef, useState } from "./elements.js";
import { adjust, linkTo, useTitle } from "./address.js";
import { changesInWords, gradientRows, numberRows } from "./differences.js";
import { Gantt, Legend, useView } from "./gantt.js";
import { useLoaded } from "./loading.js";
import { bytes, compact, count, milliseconds, moment, percent, seconds } from "./numbers.js";
import { DropFile, Empty, Field, ProblemNote, Progress, Table, Waiting, csv, save } from "./parts.js";
import { Problem, getJson, postJson, resourcePath } from "./service.js";
import { readTimeline, shifted } from "./timeline-file.js";
import { band, certificateParts, gradientKinds, why } from "./windows.js";

const NUM_LISTED = 100;

export function Compare({ values }) {
  const [file, setFile] = useState(null);
  const one = useSide(values.a);
  const other = useSide(values.b);
  // What was loaded for another address is not what is asked for.
  const [first, third] = [[one, values.a], [other, values.b]].map(([{ value }, id]) => (value && value.id === id ? value : null));
  const measured = useMemo(() => file && first && besideSchedule(file, first), [file, first]);
  const second = measured?.side || third;
  const take = async (chosen) => {
    try {
      const timeline = await readTimeline(chosen);
      adjust({ b: "" });
      setFile(timeline);
    } catch (error) {
      setFile({ error });
    }
  };
  const busy = (values.a && one.busy && !first) || (values.b && other.busy && !third);
  return html`<${Choice} values=${values} one=${first} file=${file} take=${take} clear=${() => setFile(null)} error=${file?.error || measured?.error} />
    <${ProblemNote} error=${one.error} retry=${one.again} />
    <${ProblemNote} error=${other.error} retry=${other.again} />
    ${busy && html`<section class="card"><${Progress} task=${{ state: "running" }} what="Simulating both" /><${Waiting} what="both windows" rows=${8} /></section>`}
    ${first && second ? html`<${Both} key=${`${first.id} ${second.id}`} one=${first} other=${second} values=${values} />`
      : !busy && !one.error && !other.error && html`<${Empty} title=${values.a ? "Choose what to compare A with" : "Choose two schedules"}>
        <p>${values.a ? "Another schedule, or the timeline of a step that a job measured." : "The newest are listed above. A job's page and each result lead here, too."}</p><//>`}`;
}

// A schedule with its profile, its window and the newest report under it.
function useSide(id) {
  return useLoaded(async (signal) => {
    if (!id) return null;
    const resource = await getJson(resourcePath("schedule", id), signal);
    const { schedule, job, fingerprint, profile_sha256: sha256 } = resource;
    const [stored, result, reports] = await Promise.all([
      getJson(resourcePath("profile", sha256), signal),
      postJson("v1/simulations/windows", { profile_id: sha256, schedule_id: id, policies: [] }, { signal }),
      job ? getJson(`v1/reports?job=${encodeURIComponent(job)}&fingerprint=${fingerprint}&limit=200`, signal) : { items: [] },
    ]);
    const report = reports.items.find((each) => each.profile_sha256 === sha256 && each.predicted_iteration_s === schedule.predicted.iteration_s);
    return { id, job, schedule, report, profile: stored.profile, result, row: result.rows[0], title: job || result.name, certificate: certificateParts(schedule) };
  }, [id]);
}

// A measured step as the other side of a schedule: {side}, or {error} where it is not of this model.
function besideSchedule({ row, title, measured, error }, one) {
  if (error) return null;
  const known = new Set(one.row.groups.flatMap(({ gradients }) => gradients));
  if (!row.groups.some(({ gradients }) => gradients.some((name) => known.has(name)))) {
    return { error: new Problem({ title: "Another model", detail: `No gradient of this timeline is in schedule A. It has ${row.groups[0].gradients[0]}, for example.` }, 422) };
  }
  const ready = one.schedule.groups.reduce((least, { ready_s: at }) => Math.min(least, at ?? Infinity), Infinity);
  const start = row.transfer_starts_s.reduce((least, at) => Math.min(least, at), Infinity);
  const by = measured && Number.isFinite(ready) ? Math.max(ready, -start) : 0;
  return { side: { id: title, row: shifted(row, by), report: measured ? one.report : null, result: { op_names: [], op_phases: [] }, title, measured, moved: by, certificate: [] } };
}

const label = ({ job, id, asked_at: at }) => `${job || "no job"}, ${moment(at)}, ${id.slice(0, 8)}`;

function Choice({ values, one, file, take, clear, error }) {
  const job = one?.job;
  const { value, error: failed, again } = useLoaded(async (signal) => {
    const { items } = await getJson(`v1/schedules?limit=${NUM_LISTED}`, signal);
    if (!job) return items;
    const same = (await getJson(`v1/schedules?job=${encodeURIComponent(job)}&limit=${NUM_LISTED}`, signal)).items;
    const listed = new Set(same.map(({ id }) => id));
    return [...same, ...items.filter(({ id }) => !listed.has(id))];
  }, [job]);
  const items = value || [];
  const choose = (name) => (event) => {
    if (name === "b") clear();
    adjust({ [name]: event.target.value, from: "", to: "" });
  };
  const paste = (name) => (event) => {
    const found = event.target.value.match(/[0-9a-f]{32}(?![0-9a-f])/);
    if (found) choose(name)({ target: { value: found[0] } });
  };
  const options = (chosen) => html`<option value="">${value ? "choose a schedule" : "loading…"}</option>
    ${chosen && !items.some(({ id }) => id === chosen) && html`<option value=${chosen}>${chosen.slice(0, 40)}</option>`}
    ${items.map((each) => html`<option value=${each.id}>${label(each)}</option>`)}`;
  return html`<section class="card" aria-labelledby="choice-title">
    <div class="row between"><h2 id="choice-title">Compare two schedules</h2>
      ${values.a && values.b && html`<button type="button" onClick=${() => adjust({ a: values.b, b: values.a })}>Swap A and B</button>`}</div>
    <${ProblemNote} error=${failed} retry=${again} />
    <div class="fields sides">
      ${["a", "b"].map((name) => html`<${Field} id=${`side-${name}`} label=${`Schedule ${name.toUpperCase()}`}>
        <select id=${`side-${name}`} value=${(name === "b" && file && !error ? "" : values[name]) || ""} onChange=${choose(name)}>${options(values[name])}</select>
        <input type="text" aria-label=${`Link or identifier of schedule ${name.toUpperCase()}`} placeholder="or paste a link to its result" onInput=${paste(name)} /><//>`)}
    </div>
    ${values.a && html`<details open=${Boolean(file)}><summary>Or compare A with a step that the job measured</summary>
      <${DropFile} id="timeline" label=${file && !error ? `B is ${file.title}` : "Drop a timeline here, or choose one"} onFile=${take}
        hint=${html`The file that <code>optimizer.write_timeline("timeline.json")</code> writes in the training job. It stays in your browser.`} /></details>`}
    <${ProblemNote} error=${error} />
  </section>`;
}

// False until the view was drawn once: what takes long with many gradients comes after the chart, in a task of its own.
function useDrawn() {
  const [drawn, setDrawn] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setDrawn(true));
    return () => clearTimeout(timer);
  }, []);
  return drawn;
}

function Both({ one, other, values }) {
  const chart = useRef(null);
  const [view, remember] = useView(values);
  const [all, setAll] = useState(false);
  useTitle(`${one.title} against ${other.title}`, "Compare");
  const sides = [["A", one], ["B", other]];
  const bands = useMemo(() => {
    const kinds = gradientKinds([one.row, other.row]);
    return sides.map(([letter, side]) => {
      const made = band(side.result, side.row, kinds, side.certificate);
      const { predicted } = side.schedule || {};
      const times = [predicted ? `predicted ${seconds(predicted.iteration_s)}` : side.measured ? "measured transfers" : "", side.report ? `measured ${seconds(side.report.measured_iteration_s)}` : ""].filter(Boolean).join(", ");
      made.title = `${letter}: ${side.title}${times ? `, ${times}` : ""}`;
      made.short = `${letter}: ${times}`;
      if (predicted) made.marks.push({ at: predicted.iteration_s, name: "end" }, { at: predicted.lower_bound_s, name: "bound" });
      if (side.report) made.marks.push({ at: side.report.measured_iteration_s, name: "measured" });
      return made;
    });
  }, [one, other]);
  const end = useMemo(() => 1.005 * bands.reduce((latest, { lanes, marks }) => Math.max(latest, ...marks.map(({ at }) => at), ...lanes.map(({ ends }) => ends.reduce((a, b) => Math.max(a, b), 0))), 0), [bands]);
  const numbers = useMemo(() => numberRows(one, other), [one, other]);
  const ready = useDrawn();
  const gradients = useMemo(() => (ready ? gradientRows(one, other) : []), [one, other, ready]);
  const words = useMemo(() => (ready && other.schedule ? changesInWords(one, other) : []), [one, other, ready]);
  const shown = all ? gradients : gradients.filter(({ differs }) => differs);
  const file = () => csv(["gradient", "size_bytes_a", "size_bytes_b", "group_a", "group_b", "start_s_a", "start_s_b", "end_s_a", "end_s_b"],
    gradients.map(({ name, size, a, b }) => [name, size[0], size[1], a?.group, b?.group, a?.start, b?.start, a?.end, b?.end]));
  return html`<section class="card" aria-labelledby="changed-title">
    <h2 id="changed-title">What changed</h2>
    <div class="pair even"><div class="said">
    <${Verdict} one=${one} other=${other} />
    ${words.length > 0 && html`<ul class="changes">${words.map((line) => html`<li>${line}</li>`)}</ul>`}
    ${other.schedule && html`<dl class="reasons">${sides.map(([letter, side]) => html`<div><dt>${letter}</dt><dd>${why(side.schedule)}</dd></div>`)}</dl>`}
    ${other.measured && html`<p class="faint">A job counts its times from the first group that it submits. They are drawn ${seconds(other.moved)} later: that is when A's first group is ready.</p>`}
    </div>
    <${Table} caption="Numbers of both" rows=${numbers} rowKey=${({ name }) => name} columns=${[
      { name: "what", title: "Quantity", show: ({ name }) => name },
      ...["A", "B"].map((letter, at) => ({ name: letter, title: letter, show: ({ values: both, show }) => (both[at] === null ? "–" : show(both[at])), numeric: true })),
      { name: "change", title: "B against A", show: ({ values: [a, b] }) => (!a || b === null ? "–" : b > 10 * a ? `${compact(b / a)} times` : percent(b / a - 1, true)), numeric: true },
    ]} />
    </div>
  </section>
  <section class="card" aria-labelledby="both-title">
    <h2 id="both-title">Both iterations on one time axis</h2>
    <${Gantt} label="Windows of A and B" bands=${bands} end=${end} view=${view} onView=${remember} chartRef=${chart} />
    <${Legend} phases=${one.result.op_phases} measured=${Boolean(one.report || other.report)} />
    <div class="row"><button type="button" onClick=${() => save("comparison.svg", chart.current.toSvg(), "image/svg+xml")}>Chart as SVG</button>
      ${sides.filter(([, { schedule }]) => schedule).map(([letter, { id }]) => html`<a class="button" href=${linkTo("result", { schedule: id })}>Result of ${letter}</a>`)}</div>
  </section>
  <section class="card" aria-labelledby="gradients-title">
    <div class="row between"><h2 id="gradients-title">${count(shown.length)} of ${count(gradients.length)} gradients${all ? "" : " differ"}</h2>
      <div class="row"><label class="switch"><input type="checkbox" role="switch" checked=${all} onChange=${(event) => setAll(event.target.checked)} /> Show all</label>
        <button type="button" onClick=${() => save("gradients.csv", file(), "text/csv")}>Gradients (CSV)</button></div></div>
    ${!ready ? html`<${Waiting} what="gradients" rows=${8} />` : shown.length ? html`<${Table} caption="Gradients of both" rows=${shown} rowKey=${({ name }) => name} columns=${GRADIENT_COLUMNS} first="later" descending=${true} pageSize=${25} />`
      : html`<${Empty} title="No gradient differs"><p>Each arrives at the same time (within 1 %), in the same group.</p><//>`}
  </section>`;
}

// The one sentence: which is faster, as predicted, as measured, or measured against predicted.
function Verdict({ one, other }) {
  const against = (a, b) => (Math.abs(b / a - 1) < 5e-4 ? "as long as" : `${percent(Math.abs(b / a - 1))} ${b < a ? "shorter than" : "longer than"}`);
  if (!other.schedule) {
    const { report, schedule } = one;
    return html`<p class="verdict">${other.measured && report ? `The job measures ${seconds(report.measured_iteration_s)}, ${against(schedule.predicted.iteration_s, report.measured_iteration_s)} the ${seconds(schedule.predicted.iteration_s)} that A predicts.`
      : "No report tells how long an iteration takes under A: compare the transfers."}</p>`;
  }
  const [a, b] = [one, other].map(({ schedule }) => schedule.predicted.iteration_s);
  const both = one.report && other.report;
  return html`<p class="verdict">An iteration of B is predicted to be ${against(a, b)} one of A${Math.abs(b / a - 1) < 5e-4 ? "" : ` (${seconds(b)} against ${seconds(a)})`}${both
    ? `, and measured ${against(one.report.measured_iteration_s, other.report.measured_iteration_s)} it` : ""}.</p>`;
}

const side = (name, title, of, show) => ["a", "b"].map((key) => ({
  name: `${name}-${key}`, title: `${title} ${key.toUpperCase()}`, value: (row) => (row[key] ? of(row[key]) : null), show: (row) => (row[key] ? show(row[key]) : "–"), numeric: true,
}));
const GRADIENT_COLUMNS = [
  { name: "name", title: "Gradient", value: ({ name }) => name, show: ({ name }) => html`<span class="name">${name}</span>` },
  { name: "size", title: "Size", value: ({ size }) => size[0] ?? size[1], show: ({ size: [a, b] }) => (a !== null && b !== null && a !== b ? `${bytes(a)} → ${bytes(b)}` : bytes(a ?? b)), numeric: true },
  ...side("together", "Gradients in its group,", ({ together }) => together, ({ together }) => count(together)),
  ...side("start", "Sent", ({ start }) => start, ({ start }) => milliseconds(start)),
  ...side("end", "Arrived", ({ end }) => end, ({ end }) => milliseconds(end)),
  { name: "later", title: "Later in B", value: ({ later }) => later, show: ({ later, a, b }) => (later === null ? (a ? "only in A" : b ? "only in B" : "–") : `${later > 0 ? "+" : ""}${milliseconds(later)}`), numeric: true },
];
