// A schedule of a graph of sharded training: compute, wires and memory in time, beside other policies.
import { html, useMemo, useRef, useState } from "./elements.js";
import { adjust, goTo, linkTo, useTitle } from "./address.js";
import { groupKind } from "./gantt-chart.js";
import { Gantt, useView } from "./gantt.js";
import { useLoaded } from "./loading.js";
import { bytes, count, counted, gigabytes, milliseconds, percent, seconds } from "./numbers.js";
import { Copyable, Entry, Field, ProblemNote, Progress, Table, Waiting, save } from "./parts.js";
import { Pointing } from "./pointing.js";
import { getJson, postJson, postTask, resourcePath } from "./service.js";
import { band, policyName } from "./windows.js";

export const GRAPH_POLICIES = ["as-traced", "fsdp2", "inductor", "zero-3", "blocks"];
const FIRST = ["as-traced", "fsdp2"];
const MOST_SHOWN = 1.5;
// What all rows are compared with: FSDP2 where it is shown, or else the first other policy.
const referenceIn = (rows) => ["fsdp2", ...GRAPH_POLICIES].map((wanted) => rows.find(({ name }) => name === wanted)).find(Boolean);

export const graphPath = (id) => `${resourcePath("graph-schedule", id)}/graph`;

export function GraphResult({ values }) {
  const policies = values.policies === undefined ? FIRST : values.policies.split(",").filter((name) => GRAPH_POLICIES.includes(name));
  const solved = useLoaded((signal) => getJson(resourcePath("graph-schedule", values.graph), signal), [values.graph]);
  const resource = solved.value;
  const windows = useLoaded(
    async (signal) => (resource ? postJson("v1/simulations/graph-windows", { schedule_id: resource.id, policies }, { signal }) : null),
    [resource?.id, policies.join(",")],
  );
  const chart = useRef(null);
  useTitle(resource?.name, "Result");
  return html`
    <${ProblemNote} error=${solved.error} retry=${solved.again} />
    <${ProblemNote} error=${windows.error} retry=${windows.again} />
    ${resource && html`<${Headline} resource=${resource} result=${windows.value} values=${values} chart=${chart} />`}
    ${resource && windows.value && html`<${Windows} resource=${resource} result=${windows.value} values=${values} policies=${policies} busy=${windows.busy} chart=${chart} />`}
    ${!resource && !solved.error && html`<section class="card"><${Waiting} what="the schedule" rows=${8} /></section>`}
    ${resource && !windows.value && !windows.error && html`<section class="card"><h2>One iteration</h2><p role="status" class="busy">Simulating…</p><${Waiting} what="windows" rows=${8} /></section>`}
    ${resource && html`<div class="pair"><${Calls} schedule=${resource.schedule} /><${Take} resource=${resource} /></div>`}`;
}

// The best of the bounds, as times one behind the other, and what it says in words.
export function graphCertificate({ graph: { sets, late, longest_path_s: path }, predicted }) {
  const set = sets.reduce((one, other) => (other.bound_s > (one?.bound_s ?? -1) ? other : one), null);
  const best = Math.max(set?.bound_s ?? 0, late?.bound_s ?? 0, path);
  const part = (name, kind, value, means) => ({ name, kind, value, means });
  if (set && set.bound_s === best) {
    const what = set.wire === null ? "compute" : `wire ${set.wire}`;
    const things = set.wire === null ? "op" : "collective";
    const parts = [
      part("before", "ready", set.min_head_s, `no ${things} of the set can start earlier`),
      part(what, "carried", set.total_s, `the ${count(set.num_nodes)} ${things}s of the set, without copies`),
      part("latency", "carried", set.latency_s, "of one call at least"),
      part("after", "tail", set.min_tail_s, "follows the last of them at least"),
    ].filter(({ name, value }) => name === what || value > 0);
    const at = (name) => parts.findIndex((each) => each.name === name);
    const number = (name) => ({ text: seconds(parts[at(name)].value), part: at(name) });
    const rest = [["before", " after the first "], ["after", ", followed by at least "]].filter(([name]) => at(name) >= 0).flatMap(([name, words]) => [words, number(name)]);
    const says = set.wire === null ? "Compute limits this graph: its ops take " : `Wire ${set.wire} limits this graph: collectives take at least `;
    return { parts, says: [says, number(what), ...rest, "."] };
  }
  if (late && late.bound_s === best) {
    const parts = [
      part("compute", "carried", late.compute_s, "all ops"),
      part("not hidden", "tail", late.latency_s + late.own_s - late.hidden_s, `of collective ${late.collective}: too little compute is left to hide it`),
    ];
    return { parts, says: ["Compute limits this graph: ops take ", { text: seconds(parts[0].value), part: 0 }, `, and of collective ${late.collective} at least `, { text: seconds(parts[1].value), part: 1 }, " cannot be hidden."] };
  }
  return { parts: [part("longest path", "carried", predicted.lower_bound_s, "ops and collectives that wait for one another")],
    says: ["The longest path limits this graph: ops and collectives that wait for one another take ", { text: seconds(predicted.lower_bound_s), part: 0 }, "."] };
}

function Headline({ resource, result, values, chart }) {
  const { predicted, graph: plan } = resource.schedule;
  const [state, setState] = useState({});
  const { says } = useMemo(() => graphCertificate(resource.schedule), [resource.id]);
  const reference = referenceIn(result?.rows || []);
  const within = async (event) => {
    const limit = Number(event.target.value);
    if (!event.target.reportValidity()) return;
    setState({ task: { state: "running" } });
    try {
      const graph = await getJson(graphPath(resource.id));
      const made = await postTask("v1/graph-schedules", { graph, memory_bytes: limit > 0 ? Math.round(limit * 1e9) : null }, { progress: (task) => setState({ task }) });
      setState({});
      goTo("result", { graph: made.id, policies: values.policies });
    } catch (error) {
      setState({ error });
    }
  };
  return html`<section class="card headline" aria-label="Result">
    <div class="row between">
      <h2 class="name">${resource.name}${result && html` <span class="faint">${counted(result.num_nodes, "node")}, ${counted(result.num_collectives, "collective")}</span>`}</h2>
      <${Field} id="memory-budget" label="Memory budget, GB"><${Entry} id="memory-budget" type="number" min="0" step="any" placeholder="no limit" disabled=${Boolean(state.task)}
        value=${plan.budget_bytes == null ? "" : plan.budget_bytes / 1e9} onChange=${within} /><//>
    </div>
    <${ProblemNote} error=${state.error} />
    ${state.task && html`<${Progress} task=${state.task} what="Planning" />`}
    <dl class="numbers">
      ${reference && html`<div><dt>${policyName(reference.name)}, simulated</dt><dd>${seconds(reference.iteration_s)}</dd></div>`}
      <div class="chief"><dt>PACE, predicted</dt><dd>${seconds(predicted.iteration_s)}
        ${reference && html`<span class=${reference.iteration_s - predicted.iteration_s > 1e-9 ? "good" : "faint"}>${percent(predicted.iteration_s / reference.iteration_s - 1, true)}</span>`}</dd></div>
      <div><dt>No plan is faster than</dt><dd>${seconds(predicted.lower_bound_s)}</dd></div>
      <div><dt>Gap: PACE above that</dt><dd>${percent(predicted.gap)}</dd></div>
      <div><dt>Compute alone</dt><dd>${seconds(predicted.compute_s)}</dd></div>
      <div><dt>Peak memory</dt><dd>${gigabytes(predicted.peak_bytes)}</dd></div>
    </dl>
    <p>${says.map((each) => (typeof each === "string" ? each : html`<${Pointing} part=${each.part} chart=${chart} text=${each.text} />`))}
      ${" "}${holdsFor(plan, predicted)}</p>
  </section>`;
}

function holdsFor({ enumerated, late }, { lower_bound_s }) {
  if (enumerated) return "All orders and all buckets were compared.";
  return late?.held_s_per_byte && late.bound_s === lower_bound_s
    ? "The bound holds within the memory budget." : "The bound holds for any amount of memory.";
}

const opOf = ({ name }) => name;

function graphBands(result, schedule, parts) {
  const ops = [...new Set(result.rows.flatMap(({ groups }) => groups.map(opOf)))];
  const kinds = new Map();
  for (const { groups } of result.rows) for (const group of groups) for (const name of group.gradients) kinds.set(name, groupKind(ops.indexOf(opOf(group))));
  const [first] = result.rows;
  const reference = referenceIn(result.rows);
  const bands = result.rows.map((row) => {
    const short = `${policyName(row.name)}: ${seconds(row.iteration_s)}`;
    const against = !reference || row === reference ? "" : `, ${percent(row.iteration_s / reference.iteration_s - 1, true)} against ${policyName(reference.name)}`;
    return { ...band(result, row, kinds, row === first ? parts : []), title: `${short}${against}`, short, marks: [{ at: row.iteration_s, name: "end" }, { at: schedule.predicted.lower_bound_s, name: "bound" }] };
  });
  return { bands, ops };
}

function Windows({ resource, result, values, policies, busy, chart }) {
  const { parts } = useMemo(() => graphCertificate(resource.schedule), [resource.id]);
  const { bands, ops } = useMemo(() => graphBands(result, resource.schedule, parts), [result, parts]);
  const longest = Math.max(...result.rows.map(({ iteration_s: s }) => s));
  const [view, remember] = useView(values);
  const budget = resource.schedule.graph.budget_bytes;
  const toggle = (name) => adjust({ policies: (policies.includes(name) ? policies.filter((each) => each !== name) : [...policies, name]).join(",") || "none" });
  const reference = referenceIn(result.rows);
  const rows = result.rows.map((row) => ({
    name: row.name, against: reference && row !== reference ? row.iteration_s / reference.iteration_s - 1 : null, iteration: row.iteration_s, exposed: Math.max(row.iteration_s - result.compute_s, 0), calls: row.transfer_bytes.length,
    peak: row.memory.in_use_bytes.reduce((one, other) => Math.max(one, other), 0),
  }));
  return html`<section class="card" aria-labelledby="windows-title">
    <div class="row between"><h2 id="windows-title">One iteration</h2>${busy && html`<span role="status" class="busy">Simulating…</span>`}</div>
    <fieldset class="checks"><legend>Compare with</legend>${GRAPH_POLICIES.map((name) => html`<label><input type="checkbox"
      checked=${policies.includes(name)} onChange=${() => toggle(name)} />${policyName(name)}</label>`)}</fieldset>
    <${Gantt} label=${`Windows of ${result.name}`} bands=${bands} end=${longest * 1.005} first=${Math.min(longest * 1.005, MOST_SHOWN * result.rows[0].iteration_s)} view=${view} onView=${remember} chartRef=${chart} />
    <ul class="legend"><li><i class="k0"></i>compute, and memory in use</li><li><i class="k2"></i>copies into and out of buckets</li>
      ${ops.map((op, at) => html`<li><i class=${`k${groupKind(at)}`}></i>${op}</li>`)}
      <li><i class="line end"></i>end</li><li><i class="line bound"></i>no plan is faster</li>${budget != null && html`<li><i class="arrow-line"></i>memory budget</li>`}</ul>
    <p class="sum">Certificate: ${parts.map(({ name, value }, at) => html`${at ? " + " : ""}<span>${name} <b><${Pointing} part=${at} chart=${chart} text=${milliseconds(value)} /></b></span>`)}
      ${" = "}<b>${milliseconds(resource.schedule.predicted.lower_bound_s)}</b>. No plan ends earlier.</p>
    <${Table} caption="Policies" first="iteration" rows=${rows} rowKey=${({ name }) => name} columns=${[
      { name: "policy", title: "Policy", value: ({ name }) => policyName(name) },
      { name: "iteration", title: "Iteration, simulated", value: ({ iteration }) => iteration, show: ({ iteration }) => milliseconds(iteration), numeric: true },
      ...(reference ? [{ name: "against", title: `Against ${policyName(reference.name)}`, value: ({ against }) => against, show: ({ against }) => percent(against, true), numeric: true }] : []),
      { name: "exposed", title: "Not hidden by compute", value: ({ exposed }) => exposed, show: ({ exposed }) => milliseconds(exposed), numeric: true },
      { name: "peak", title: "Peak memory", value: ({ peak }) => peak, show: ({ peak }) => html`${gigabytes(peak)}${budget != null && peak > budget && html` <span class="bad-text">over the budget</span>`}`, numeric: true },
      { name: "calls", title: "Calls", value: ({ calls }) => calls, show: ({ calls }) => count(calls), numeric: true },
    ]} />
    <div class="row"><button type="button" onClick=${() => save(`${result.name}.svg`, chart.current.toSvg(), "image/svg+xml")}>Chart as SVG</button>
      <a class="button" href=${linkTo("what-if", { graph: resource.id })}>What if…</a></div>
  </section>`;
}

function Calls({ schedule }) {
  const rows = useMemo(() => schedule.transfers.map((call, number) => ({ ...call, number, names: schedule.groups[call.group].tensors, wire: schedule.links[call.link] })), [schedule]);
  return html`<section class="card" aria-labelledby="calls-title">
    <h2 id="calls-title">${counted(rows.reduce((sum, { names }) => sum + names.length, 0), "collective")} in ${counted(rows.length, "call")}</h2>
    <${Table} caption="Calls" first="number" rows=${rows} pageSize=${25} columns=${[
      { name: "number", title: "Call", value: ({ number }) => number, numeric: true },
      { name: "op", title: "Op", value: ({ op }) => op },
      { name: "names", title: "Collectives", value: ({ names }) => names[0], show: ({ names }) => html`<span class="name">${names[0]}</span>${names.length > 1
        && html` <details class="inline"><summary>and ${names.length - 1} more</summary><span class="name">${names.slice(1).join(", ")}</span></details>`}` },
      { name: "wire", title: "Wire", value: ({ wire }) => wire },
      { name: "size", title: "Size", value: ({ size_bytes: size }) => size, show: ({ size_bytes: size }) => bytes(size), numeric: true },
      { name: "start", title: "Start", value: ({ start_s: at }) => at, show: ({ start_s: at }) => milliseconds(at), numeric: true },
      { name: "end", title: "End", value: ({ end_s: at }) => at, show: ({ end_s: at }) => milliseconds(at), numeric: true },
    ]} /></section>`;
}

const code = (budget) => `import torch
from pace.runtime.inductor import CollectivePlanner

compiled = torch.compile(model, options={"post_grad_custom_post_pass": CollectivePlanner(${budget == null ? "" : `memory_bytes=${budget}`})})`;

function Take({ resource }) {
  const [error, setError] = useState(null);
  const graph = () => getJson(graphPath(resource.id)).then((document) => { setError(null); save(`${resource.name}.json`, JSON.stringify(document)); }, setError);
  return html`<section class="card" aria-labelledby="take-title">
    <h2 id="take-title">Download and use</h2>
    <${ProblemNote} error=${error} />
    <div class="row"><button type="button" onClick=${() => save(`${resource.name}-schedule.json`, JSON.stringify(resource.schedule, null, 2))}>Schedule (JSON)</button>
      <button type="button" onClick=${graph}>Graph (JSON)</button></div>
    <h3>In a compiled model</h3>
    <${Copyable} text=${code(resource.schedule.graph.budget_bytes)} label="Code for a compiled model" />
    <h3>With FSDP2</h3>
    <${Copyable} text=${`pace optimize ${resource.name}.json --fsdp2${resource.schedule.graph.budget_bytes == null ? "" : ` --memory-gb ${resource.schedule.graph.budget_bytes / 1e9}`}`} label="Command for settings of FSDP2" />
  </section>`;
}
