// What a schedule gives: one line of numbers, the windows in time, its groups, policies, downloads.
import { html, useMemo, useRef } from "./elements.js";
import { adjust, linkTo, useTitle } from "./address.js";
import { Gantt, Legend, useView } from "./gantt.js";
import { GraphResult } from "./graph-result.js";
import { Groups } from "./groups.js";
import { useLoaded } from "./loading.js";
import { count, counted, milliseconds, percent, seconds } from "./numbers.js";
import { Empty, ProblemNote, Progress, Table, Waiting, Warnings, save } from "./parts.js";
import { Pointing } from "./pointing.js";
import { checkId, getJson, postJson, postTask, profileWith, resourcePath } from "./service.js";
import { TakeAlong } from "./take-along.js";
import { certificateParts, certified, policyName, whyParts, windowBands } from "./windows.js";

const POLICIES = ["ddp", "fifo", "horovod", "mg-wfbp", "tao", "p3", "bytescheduler", "dear"];
const FIRST = ["ddp", "bytescheduler"];
// Rows that the chart always shows whole, and how many times as long as these may be what it shows at first.
const CHIEF = ["schedule", "ddp"];
const MOST_SHOWN = 1.5;

export function Result({ values }) {
  if (values.graph) return html`<${GraphResult} key=${values.graph} values=${values} />`;
  if (!values.profile && !values.schedule) {
    return html`<${Empty} title="No profile is chosen"><p>Choose one under <a href=${linkTo("start")}>Start</a>, or a schedule of a job under <a href=${linkTo("jobs")}>Jobs</a>.</p><//>`;
  }
  return html`<${Chosen} key=${`${values.profile} ${values.schedule}`} values=${values} />`;
}

function Chosen({ values }) {
  const policies = values.policies === undefined ? FIRST : values.policies.split(",").filter((name) => POLICIES.includes(name));
  const clipped = values.clip === "1";
  const solved = useLoaded(async (signal, progress) => {
    if (values.schedule) {
      const resource = await getJson(resourcePath("schedule", values.schedule), signal);
      return { resource, profileId: resource.profile_sha256 };
    }
    checkId("profile", values.profile);
    const profileId = values.clip === undefined ? values.profile : await profileWith(values.profile, clipped ? "global-norm" : "per-gradient", signal);
    const resource = await postTask("v1/schedules", { profile_id: profileId, options: values.exchange ? { exchange: values.exchange } : {} }, { signal, progress });
    return { resource, profileId };
  }, [values.profile, values.schedule, values.clip, values.exchange]);
  const windows = useLoaded(async (signal) => {
    if (!solved.value) return null;
    const { resource, profileId } = solved.value;
    // Policies of all-reduces say nothing about a job that pushes and pulls.
    const asked = resource.schedule.exchange === "servers" ? [] : [...new Set(["ddp", ...policies])];
    return postJson("v1/simulations/windows", { profile_id: profileId, schedule_id: resource.id, policies: asked }, { signal });
  }, [solved.value?.resource.id, policies.join(",")]);
  const warnings = useMemo(() => JSON.parse(sessionStorage.getItem(`pace.warnings.${values.profile}`) || "[]"), [values.profile]);
  const { resource } = solved.value || {};
  const result = windows.value;
  const ddp = result?.rows.find(({ name }) => name === "ddp")?.iteration_s;
  const chart = useRef(null);
  useTitle(resource?.job || result?.name, "Result");
  return html`
    <${ProblemNote} error=${solved.error} retry=${solved.again} />
    <${ProblemNote} error=${windows.error} retry=${windows.again} />
    <${Progress} task=${solved.busy ? solved.task || (resource ? null : { state: "running" }) : null} what="Solving" />
    ${resource && html`<${Headline} resource=${resource} result=${result} clipped=${clipped} values=${values} chart=${chart} />`}
    <${Warnings} lines=${warnings} />
    ${resource && result && html`<${Windows} key=${resource.id} resource=${resource} result=${result} values=${values} policies=${policies} busy=${windows.busy} chart=${chart} />`}
    ${!resource && !solved.error && html`<section class="card"><${Waiting} what="the schedule" rows=${8} /></section>`}
    ${resource && !result && !windows.error && html`<section class="card"><h2>One iteration</h2><p role="status" class="busy">Simulating…</p><${Waiting} what="windows" rows=${8} /></section>`}
    ${resource && html`<div class="pair">
      <${Groups} resource=${resource} />
      <${TakeAlong} key=${resource.id} resource=${resource} profileId=${solved.value.profileId} ddp=${ddp} name=${result?.name || "schedule"} />
    </div>`}
  `;
}

// Why the bound above is not what the certificate adds up to.
function OtherBound({ schedule }) {
  const { lower_bound_s: lower, iteration_s: iteration } = schedule.predicted;
  if (Math.abs(certified(schedule).sum - lower) < 1e-6 * lower) return null;
  return html`<p class="faint">The bound of ${milliseconds(lower)} above is another number: the certificate is about these groups in any order, the bound about all groups.
    So other groups save at most ${milliseconds(iteration - lower)}.</p>`;
}

function Headline({ resource, result, clipped, values, chart }) {
  const { predicted } = resource.schedule;
  const ddp = result?.rows.find(({ name }) => name === "ddp");
  const update = result?.update;
  const pushed = resource.schedule.exchange === "servers";
  const isClipped = values.clip === undefined ? update === "global-norm" : clipped;
  return html`<section class="card headline" aria-label="Result">
    <div class="row between">
      <h2 class="name">${result?.name || "…"}${result && html` <span class="faint">${counted(result.workers, "worker")}</span>`}</h2>
      ${!values.schedule && html`<div class="row">${!pushed && html`<label class="switch" for="exchange">Exchange</label>
        <select id="exchange" class="short" value=${values.exchange || ""} onChange=${(event) => adjust({ exchange: event.target.value, from: "", to: "" })}>
          <option value="">as updates allow</option><option value="allreduce">whole all-reduces</option><option value="sharded">sharded</option></select>`}
        <label class="switch"><input type="checkbox" role="switch" checked=${isClipped} onChange=${(event) => adjust({ clip: event.target.checked ? "1" : "0", from: "", to: "" })} />
        Clipping by the global norm</label></div>`}
    </div>
    <dl class="numbers">
      ${(ddp || (!result && !pushed)) && html`<div><dt>PyTorch DDP, simulated</dt><dd>${ddp ? seconds(ddp.iteration_s) : "…"}</dd></div>`}
      <div class="chief"><dt>PACE, predicted</dt><dd>${seconds(predicted.iteration_s)}
        ${ddp && html`<span class=${ddp.iteration_s - predicted.iteration_s > 1e-9 ? "good" : "faint"}>${percent(predicted.iteration_s / ddp.iteration_s - 1, true)}</span>`}</dd></div>
      ${result?.batch && predicted.iteration_s > 0 && html`<div><dt>Speed, predicted</dt><dd>${count(Math.round(result.batch / predicted.iteration_s))} ${result.batch_unit}/s</dd></div>`}
      <div><dt>No schedule is faster than</dt><dd>${seconds(predicted.lower_bound_s)}</dd></div>
      <div><dt>Gap: PACE above that</dt><dd>${percent(predicted.gap)}</dd></div>
      <div><dt>Compute alone</dt><dd>${seconds(predicted.compute_s)}</dd></div>
      ${predicted.expected_s != null && html`<div title="With late ranks, and calls that take longer while compute runs">
        <dt>Expected under load</dt><dd>${seconds(predicted.expected_s)}</dd></div>`}
      ${result?.recorded_s != null && html`<div><dt>Recorded step, measured</dt><dd>${seconds(result.recorded_s)}</dd></div>`}
    </dl>
    <p>${whyParts(resource.schedule).map((each) => (typeof each === "string" ? each : html`<${Pointing} part=${each.part} chart=${chart} text=${each.text} />`))}</p>
    ${resource.schedule.solver.curve?.length > 1 && html`<p class="faint">Expected under load, by number of calls: ${resource.schedule.solver.curve.slice(-6)
      .map(([calls, expected]) => `${calls}: ${seconds(expected)}`).join(", ")}${predicted.ddp_s != null && `; DDP's default buckets: ${seconds(predicted.ddp_s)}`}.</p>`}
  </section>`;
}

function Windows({ resource, result, values, policies, busy, chart }) {
  const parts = useMemo(() => certificateParts(resource.schedule), [resource.id]);
  const proof = certified(resource.schedule);
  const bands = useMemo(() => {
    const bound = resource.schedule.predicted.lower_bound_s;
    const made = windowBands(result, parts);
    for (const band of made) band.marks.push({ at: bound, name: "bound" });
    return made;
  }, [result, parts]);
  // What nobody waits for may end behind the iteration.
  const end = useMemo(() => 1.005 * result.rows.reduce((latest, row) => row.transfer_ends_s.reduce((one, other) => Math.max(one, other), Math.max(latest, row.iteration_s)), 0), [result]);
  // One slow policy would squeeze all others: the chart begins with what matters, and marks what ends beyond it.
  const first = Math.min(end, MOST_SHOWN * Math.max(...result.rows.filter(({ name }) => CHIEF.includes(name)).map(({ iteration_s: s }) => s)));
  const [view, remember] = useView(values);
  const toggle = (name) => {
    const next = policies.includes(name) ? policies.filter((each) => each !== name) : [...policies, name];
    adjust({ policies: next.join(",") || "none" });
  };
  const rows = result.rows.map((row) => ({ name: row.name, iteration: row.iteration_s, exposed: row.iteration_s - result.compute_s }));
  const ddp = result.rows.find(({ name }) => name === "ddp")?.iteration_s;
  return html`<section class="card" aria-labelledby="windows-title">
    <div class="row between"><h2 id="windows-title">One iteration</h2>${busy && html`<span role="status" class="busy">Simulating…</span>`}</div>
    ${ddp !== undefined && html`<fieldset class="checks"><legend>Compare with</legend>${POLICIES.map((name) => html`<label><input type="checkbox"
      checked=${name === "ddp" || policies.includes(name)} disabled=${name === "ddp"} onChange=${() => toggle(name)} />${policyName(name)}</label>`)}</fieldset>`}
    <${Gantt} label=${`Windows of ${result.name}`} bands=${bands} end=${end} first=${first} view=${view} onView=${remember} chartRef=${chart} />
    <${Legend} phases=${result.op_phases} />
    ${parts.length > 0 && html`<p class="sum">Certificate: ${parts.map(({ name, value }, at) => html`${at ? " + " : ""}<span>${name} <b><${Pointing} part=${at} chart=${chart} text=${milliseconds(value)} /></b></span>`)}
      ${" = "}<b>${milliseconds(proof.sum)}</b>. ${proof.proves}</p>
      <p class="faint">The set is the transfers that limit the iteration. ${parts.map(({ name, means }) => `${name[0].toUpperCase()}${name.slice(1)}: ${means}.`).join(" ")}</p>`}
    <${OtherBound} schedule=${resource.schedule} />
    <${Table} caption="Policies" first="iteration" rows=${rows} rowKey=${({ name }) => name} columns=${[
      { name: "policy", title: "Policy", value: ({ name }) => policyName(name) },
      { name: "iteration", title: "Iteration, simulated", value: ({ iteration }) => iteration, show: ({ iteration }) => milliseconds(iteration), numeric: true },
      ...(result.batch ? [{ name: "speed", title: `${result.batch_unit} per second`, value: ({ iteration }) => result.batch / iteration, show: ({ iteration }) => (iteration ? count(Math.round(result.batch / iteration)) : "–"), numeric: true }] : []),
      { name: "against", title: "Against DDP", value: ({ iteration }) => iteration, show: ({ name, iteration }) => (name === "ddp" || !ddp ? "–" : percent(iteration / ddp - 1, true)), numeric: true },
      { name: "exposed", title: "Not hidden by compute", value: ({ exposed }) => exposed, show: ({ exposed }) => milliseconds(Math.max(exposed, 0)), numeric: true },
    ]} />
    <div class="row"><button type="button" onClick=${() => save(`${result.name}.svg`, chart.current.toSvg(), "image/svg+xml")}>Chart as SVG</button>
      <a class="button" href=${linkTo("compare", { a: resource.id })}>Compare with another schedule or a measured step…</a>
      <a class="button" href=${linkTo("what-if", { profile: values.profile || resource.profile_sha256, clip: values.clip })}>What if…</a></div>
  </section>`;
}
