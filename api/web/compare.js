// Schedules, and a step that a job measured: one time axis, numbers side by side, and what changed against the first.
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

// Sides of the comparison in the address; the first is what all others are compared with.
const LETTERS = ["a", "b", "c", "d", "e"];
const chosenIn = (values) => LETTERS.map((letter) => values[letter]).filter(Boolean);
// Without gaps: what follows a removed schedule takes its letter.
const choose = (ids) => adjust({ ...Object.fromEntries(LETTERS.map((letter, at) => [letter, ids[at] || ""])), from: "", to: "" });

export function Compare({ values }) {
  const [file, setFile] = useState(null);
  const ids = chosenIn(values);
  const loaded = LETTERS.map((_, at) => useSide(ids[at]));
  // What was loaded for another address is not what is asked for.
  const schedules = ids.map((id, at) => (loaded[at].value?.id === id ? loaded[at].value : null));
  const [first] = schedules;
  const isFull = ids.length === LETTERS.length;
  const measured = useMemo(() => (file && first && !isFull ? besideSchedule(file, first) : null), [file, first, isFull]);
  const take = async (chosen) => {
    try {
      setFile(await readTimeline(chosen));
    } catch (error) {
      setFile({ error });
    }
  };
  const faults = loaded.filter(({ error }, at) => ids[at] && error);
  const busy = !faults.length && schedules.includes(null);
  const sides = [...schedules, ...(measured?.side ? [measured.side] : [])].map((side, at) => side && { ...side, letter: LETTERS[at].toUpperCase() });
  return html`<${Choice} ids=${ids} one=${first} file=${file} take=${take} clear=${() => setFile(null)} error=${file?.error || measured?.error} />
    ${faults.map((each) => html`<${ProblemNote} error=${each.error} retry=${each.again} />`)}
    ${busy && html`<section class="card"><${Progress} task=${{ state: "running" }} what="Simulating" /><${Waiting} what="windows" rows=${8} /></section>`}
    ${!busy && !faults.length && (sides.length > 1 ? html`<${Sides} key=${sides.map(({ id }) => id).join(" ")} sides=${sides} values=${values} />`
      : html`<${Empty} title=${first ? "Choose what to compare A with" : "Choose two schedules"}>
        <p>${first ? "Another schedule, or the timeline of a step that a job measured." : "The newest are listed above. A job's page and each result lead here, too."}</p><//>`)}`;
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

function Choice({ ids, one, file, take, clear, error }) {
  const job = one?.job;
  const { value, error: failed, again } = useLoaded(async (signal) => {
    const { items } = await getJson(`v1/schedules?limit=${NUM_LISTED}`, signal);
    if (!job) return items;
    const same = (await getJson(`v1/schedules?job=${encodeURIComponent(job)}&limit=${NUM_LISTED}`, signal)).items;
    const listed = new Set(same.map(({ id }) => id));
    return [...same, ...items.filter(({ id }) => !listed.has(id))];
  }, [job]);
  const items = value || [];
  const put = (at, id) => choose([...ids.slice(0, at), id, ...ids.slice(at + 1)].filter(Boolean));
  const paste = (at) => (event) => {
    const found = event.target.value.match(/[0-9a-f]{32}(?![0-9a-f])/);
    if (!found) return;
    event.target.value = "";
    put(at, found[0]);
  };
  const isFile = file && !error;
  // One more than there are: what is chosen last may be removed, too.
  const most = LETTERS.length - (isFile ? 1 : 0);
  const fields = LETTERS.slice(0, Math.min(Math.max(ids.length + 1, 2), most));
  const options = (chosen) => html`<option value="">${!value ? "loading…" : chosen ? "none" : "choose a schedule"}</option>
    ${chosen && !items.some(({ id }) => id === chosen) && html`<option value=${chosen}>${chosen.slice(0, 40)}</option>`}
    ${items.map((each) => html`<option value=${each.id}>${label(each)}</option>`)}`;
  return html`<section class="card" aria-labelledby="choice-title">
    <div class="row between"><h2 id="choice-title">Compare schedules</h2>
      ${ids.length > 1 && html`<button type="button" onClick=${() => choose([ids[1], ids[0], ...ids.slice(2)])}>Swap A and B</button>`}</div>
    <p class="faint">Up to ${LETTERS.length}: each is compared with A.</p>
    <${ProblemNote} error=${failed} retry=${again} />
    <div class="fields sides">
      ${fields.map((letter, at) => html`<${Field} key=${letter} id=${`side-${letter}`} label=${`Schedule ${letter.toUpperCase()}`}>
        <select id=${`side-${letter}`} value=${ids[at] || ""} onChange=${(event) => put(at, event.target.value)}>${options(ids[at])}</select>
        <input type="text" aria-label=${`Link or identifier of schedule ${letter.toUpperCase()}`} placeholder="or paste a link to its result" onInput=${paste(at)} /><//>`)}
    </div>
    ${ids.length > 0 && ids.length < LETTERS.length && html`<details open=${Boolean(file)}><summary>Or compare A with a step that the job measured</summary>
      <${DropFile} id="timeline" label=${isFile ? `${LETTERS[ids.length].toUpperCase()} is ${file.title}` : "Drop a timeline here, or choose one"} onFile=${take}
        hint=${html`The file that <code>optimizer.write_timeline("timeline.json")</code> writes in the training job. It stays in your browser.`} />
      ${isFile && html`<button type="button" onClick=${clear}>Remove the measured step</button>`}</details>`}
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

function Sides({ sides, values }) {
  const chart = useRef(null);
  const [view, remember] = useView(values);
  const [all, setAll] = useState(false);
  const [one, ...others] = sides;
  useTitle(sides.map(({ title }) => title).join(" against "), "Compare");
  const rows = sides.map(({ row }) => row);
  const bands = useMemo(() => {
    const kinds = gradientKinds(rows);
    return sides.map((side) => {
      const { letter } = side;
      const made = band(side.result, side.row, kinds, side.certificate);
      const { predicted } = side.schedule || {};
      const times = [predicted ? `predicted ${seconds(predicted.iteration_s)}` : side.measured ? "measured transfers" : "", side.report ? `measured ${seconds(side.report.measured_iteration_s)}` : ""].filter(Boolean).join(", ");
      made.title = `${letter}: ${side.title}${times ? `, ${times}` : ""}`;
      made.short = `${letter}: ${times}`;
      if (predicted) made.marks.push({ at: predicted.iteration_s, name: "end" }, { at: predicted.lower_bound_s, name: "bound" });
      if (side.report) made.marks.push({ at: side.report.measured_iteration_s, name: "measured" });
      return made;
    });
  }, rows);
  const end = useMemo(() => 1.005 * bands.reduce((latest, { lanes, marks }) => Math.max(latest, ...marks.map(({ at }) => at), ...lanes.map(({ ends }) => ends.reduce((a, b) => Math.max(a, b), 0))), 0), [bands]);
  const numbers = useMemo(() => numberRows(sides), [bands]);
  const ready = useDrawn();
  const words = useMemo(() => (ready ? others.filter(({ schedule }) => schedule).map((other) => [other.letter, changesInWords(one, other)]) : []), [bands, ready]);
  const [letter, setLetter] = useState(others[0].letter);
  const other = others.find((each) => each.letter === letter);
  const gradients = useMemo(() => (ready ? gradientRows(one, other) : []), [one.row, other.row, ready]);
  const shown = all ? gradients : gradients.filter(({ differs }) => differs);
  const columns = useMemo(() => gradientColumns(letter), [letter]);
  const file = () => {
    const names = ["a", letter.toLowerCase()];
    return csv(["gradient", ...["size_bytes", "group", "start_s", "end_s"].flatMap((what) => names.map((name) => `${what}_${name}`))],
      gradients.map(({ name, size, a, b }) => [name, size[0], size[1], a?.group, b?.group, a?.start, b?.start, a?.end, b?.end]));
  };
  const measured = sides.find((side) => side.measured);
  const planned = sides.filter(({ schedule }) => schedule);
  return html`<section class="card" aria-labelledby="changed-title">
    <h2 id="changed-title">What changed</h2>
    <div class=${others.length > 1 ? "said" : "pair even"}><div class="said">
    ${others.map((each) => html`<${Verdict} one=${one} other=${each} />`)}
    ${words.map(([name, lines]) => html`${others.length > 1 && html`<h3>${name} against A</h3>`}<ul class="changes">${lines.map((line) => html`<li>${line}</li>`)}</ul>`)}
    ${planned.length > 1 && html`<dl class="reasons">${planned.map((side) => html`<div><dt>${side.letter}</dt><dd>${why(side.schedule)}</dd></div>`)}</dl>`}
    ${measured && html`<p class="faint">A job counts its times from the first group that it submits. They are drawn ${seconds(measured.moved)} later: that is when A's first group is ready.</p>`}
    </div>
    <${Table} caption="Numbers of all" rows=${numbers} rowKey=${({ name }) => name} columns=${[
      { name: "what", title: "Quantity", show: ({ name }) => name },
      ...sides.flatMap((side, at) => [
        { name: side.letter, title: side.letter, show: ({ values: each, show }) => (each[at] === null ? "–" : show(each[at])), numeric: true },
        ...(at ? [{ name: `change-${side.letter}`, title: `${side.letter} against A`, show: ({ values: each }) => change(each[0], each[at]), numeric: true }] : []),
      ]),
    ]} />
    </div>
  </section>
  <section class="card" aria-labelledby="sides-title">
    <h2 id="sides-title">The iterations on one time axis</h2>
    <${Gantt} label=${`Windows of ${sides.map((side) => side.letter).join(", ")}`} bands=${bands} end=${end} view=${view} onView=${remember} chartRef=${chart} />
    <${Legend} phases=${one.result.op_phases} measured=${sides.some(({ report }) => report)} />
    <div class="row"><button type="button" onClick=${() => save("comparison.svg", chart.current.toSvg(), "image/svg+xml")}>Chart as SVG</button>
      ${planned.map((side) => html`<a class="button" href=${linkTo("result", { schedule: side.id })}>Result of ${side.letter}</a>`)}</div>
  </section>
  <section class="card" aria-labelledby="gradients-title">
    <div class="row between"><h2 id="gradients-title">${count(shown.length)} of ${count(gradients.length)} gradients${all ? "" : " differ"}</h2>
      <div class="row">${others.length > 1 && html`<label class="switch" for="gradients-of">A and</label>
        <select id="gradients-of" class="short" value=${letter} onChange=${(event) => setLetter(event.target.value)}>${others.map((each) => html`<option value=${each.letter}>${each.letter}</option>`)}</select>`}
        <label class="switch"><input type="checkbox" role="switch" checked=${all} onChange=${(event) => setAll(event.target.checked)} /> Show all</label>
        <button type="button" onClick=${() => save("gradients.csv", file(), "text/csv")}>Gradients (CSV)</button></div></div>
    ${!ready ? html`<${Waiting} what="gradients" rows=${8} />` : shown.length ? html`<${Table} key=${letter} caption=${`Gradients of A and ${letter}`} rows=${shown} rowKey=${({ name }) => name} columns=${columns} first="later" descending=${true} pageSize=${25} />`
      : html`<${Empty} title="No gradient differs"><p>Each arrives at the same time (within 1 %), in the same group.</p><//>`}
  </section>`;
}

const change = (from, to) => (!from || to === null ? "–" : to > 10 * from ? `${compact(to / from)} times` : percent(to / from - 1, true));

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
  return html`<p class="verdict">An iteration of ${other.letter} is predicted to be ${against(a, b)} one of A${Math.abs(b / a - 1) < 5e-4 ? "" : ` (${seconds(b)} against ${seconds(a)})`}${both
    ? `, and measured ${against(one.report.measured_iteration_s, other.report.measured_iteration_s)} it` : ""}.</p>`;
}

function gradientColumns(letter) {
  const side = (name, title, of, show) => [["a", "A"], ["b", letter]].map(([key, shown]) => ({
    name: `${name}-${key}`, title: `${title} ${shown}`, value: (row) => (row[key] ? of(row[key]) : null), show: (row) => (row[key] ? show(row[key]) : "–"), numeric: true,
  }));
  return [
    { name: "name", title: "Gradient", value: ({ name }) => name, show: ({ name }) => html`<span class="name">${name}</span>` },
    { name: "size", title: "Size", value: ({ size }) => size[0] ?? size[1], show: ({ size: [a, b] }) => (a !== null && b !== null && a !== b ? `${bytes(a)} → ${bytes(b)}` : bytes(a ?? b)), numeric: true },
    ...side("together", "Gradients in its group,", ({ together }) => together, ({ together }) => count(together)),
    ...side("start", "Sent", ({ start }) => start, ({ start }) => milliseconds(start)),
    ...side("end", "Arrived", ({ end }) => end, ({ end }) => milliseconds(end)),
    { name: "later", title: `Later in ${letter}`, value: ({ later }) => later, show: ({ later, a, b }) => (later === null ? (a ? "only in A" : b ? `only in ${letter}` : "–") : `${later > 0 ? "+" : ""}${milliseconds(later)}`), numeric: true },
  ];
}
