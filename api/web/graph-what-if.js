// What a graph of sharded training would take on faster wires, with less memory, or with other ranks.
import { html, useMemo } from "./elements.js";
import { adjust, linkTo, useTitle } from "./address.js";
import { Curves } from "./curves.js";
import { GRAPH_POLICIES, graphPath } from "./graph-result.js";
import { useLoaded, useSettled } from "./loading.js";
import { compact, gigabytes, milliseconds } from "./numbers.js";
import { Entry, Field, ProblemNote, Progress, Table, Waiting, csv, save } from "./parts.js";
import { getJson, postTask, resourcePath } from "./service.js";
import { policyName } from "./windows.js";

const AXES = {
  bandwidth: { field: "bandwidth_factor", name: "Bandwidth, times that of the graph", title: "bandwidth", column: "Bandwidth, ×" },
  memory: { field: "memory_gb", name: "Memory budget, GB", title: "memory budget", column: "Budget, GB" },
  ranks: { field: "ranks", name: "Ranks that share the parameters", title: "ranks", column: "Ranks" },
};
const NUM_POINTS = 9;
const POLICIES = ["pace", ...GRAPH_POLICIES];
const FIRST = "pace,fsdp2";

const positive = (text, otherwise) => (Number(text) > 0 ? Number(text) : otherwise);

// The ranks of the first all-gather, which is of parameters in most graphs.
function ranksOf(graph) {
  const gather = graph?.nodes.find(({ collective }) => collective?.op === "all-gather") || graph?.nodes.find(({ collective }) => collective);
  return Math.max(2, graph?.communicators.find(({ name }) => name === gather?.collective.communicator)?.ranks || 2);
}

// Doublings: sizes that so many ranks cannot share are refused.
function doublings(low, high) {
  const numbers = [Math.max(2, Math.round(low))];
  while (numbers.at(-1) * 2 <= high && numbers.length < NUM_POINTS) numbers.push(numbers.at(-1) * 2);
  return numbers;
}

// From less than the plan needs to twice as much, or from half to four times the bandwidth or the ranks.
function range(over, values, peak, ranks) {
  const [least, most] = { memory: [(0.85 * peak) / 1e9, (2 * peak) / 1e9], ranks: [Math.max(2, ranks / 2), 4 * ranks], bandwidth: [0.5, 4] }[over];
  const low = positive(values.low, Number(least.toPrecision(3)));
  return [low, Math.max(positive(values.high, Number(most.toPrecision(3))), low * 1.01)];
}

export function GraphWhatIf({ values }) {
  const over = AXES[values.over] ? values.over : "bandwidth";
  const axis = AXES[over];
  const chosen = (values.policies || FIRST).split(",").filter((name) => POLICIES.includes(name));
  const policies = chosen.length ? chosen : ["pace"];
  const planned = useLoaded((signal) => getJson(resourcePath("graph-schedule", values.graph), signal), [values.graph]);
  const graph = useLoaded((signal) => getJson(graphPath(values.graph), signal), [values.graph]);
  const resource = planned.value;
  const peak = resource?.schedule.predicted.peak_bytes;
  const [low, high] = resource ? range(over, values, peak, ranksOf(graph.value)) : [1, 1];
  const points = over === "ranks" ? doublings(low, high) : Array.from({ length: NUM_POINTS }, (_, at) => Number((over === "memory" ? low + ((high - low) * at) / (NUM_POINTS - 1) : low * (high / low) ** (at / (NUM_POINTS - 1))).toPrecision(4)));
  if (over === "bandwidth" && low < 1 && high > 1) points.push(1);
  const grid = { policies, [axis.field]: [...new Set(points)].sort((a, b) => a - b) };
  const question = useSettled(grid);
  const answer = useLoaded(
    async (signal, progress) => (resource && graph.value ? postTask("v1/graph-what-if", { graph: graph.value, grid: question }, { signal, progress }) : null),
    [resource?.id, Boolean(graph.value), JSON.stringify(question)],
  );
  const busy = answer.busy || JSON.stringify(question) !== JSON.stringify(grid);
  const whatIf = answer.value?.what_if;
  const shown = useMemo(() => {
    if (!whatIf) return null;
    const field = whatIf.grid.memory_gb.length ? "memory_gb" : whatIf.grid.ranks?.length ? "ranks" : "bandwidth_factor";
    const xs = [...new Set(whatIf.cells.map((cell) => cell[field]))].sort((a, b) => a - b);
    const line = (choose) => { const by = new Map(whatIf.cells.filter((cell) => choose(cell) != null).map((cell) => [cell[field], choose(cell)])); return xs.map((x) => by.get(x) ?? null); };
    const series = whatIf.grid.policies.map((name) => ({ label: policyName(name), values: line((cell) => (cell.policy === name && cell.fits ? cell.iteration_s * 1e3 : null)) }));
    return { field, xs, series: [...series, { label: "no plan is faster", values: line((cell) => cell.lower_bound_s * 1e3), dash: [6, 4] }] };
  }, [whatIf]);
  useTitle(resource?.name, "What if");
  const toggle = (name) => adjust({ policies: (policies.includes(name) ? policies.filter((each) => each !== name) : [...policies, name]).join(",") });
  const marks = shown ? [shown.field === "memory_gb" ? { at: peak / 1e9, label: "without a limit" } : { at: shown.field === "ranks" ? ranksOf(graph.value) : 1, label: "as in the graph" }] : [];
  const { name, column } = shown ? Object.values(AXES).find(({ field }) => field === shown.field) : axis;
  const error = planned.error || graph.error || answer.error;
  return html`<div class="side-by-side">
    <section class="card controls" aria-labelledby="axes-title">
      <h2 id="axes-title">What if…</h2>
      <p class="name">${resource?.name || ""} <a href=${linkTo("result", { graph: values.graph })}>Result</a></p>
      <${Field} id="over" label="Over"><select id="over" value=${over} onChange=${(event) => adjust({ over: event.target.value, low: "", high: "" })}>
        ${Object.entries(AXES).map(([key, each]) => html`<option value=${key}>${each.name}</option>`)}</select><//>
      <div class="fields two">
        <${Field} id="low" label="From"><${Entry} id="low" type="number" step="any" min="0" value=${low} onChange=${(event) => adjust({ low: event.target.value })} /><//>
        <${Field} id="high" label="To"><${Entry} id="high" type="number" step="any" min="0" value=${high} onChange=${(event) => adjust({ high: event.target.value })} /><//>
      </div>
      <fieldset class="checks"><legend>Policies</legend>${POLICIES.map((each) => html`<label><input type="checkbox" checked=${policies.includes(each)} onChange=${() => toggle(each)} />${policyName(each)}</label>`)}</fieldset>
      <p class="faint">Only PACE plans within a memory budget. Where a policy needs more, its curve has a gap. ${over === "ranks" ? "Each rank keeps its batch. Costs change like those of a ring." : "Latencies stay as they are."}</p>
    </section>
    <section class="card" aria-labelledby="answer-title" aria-busy=${String(busy)}>
      <h2 id="answer-title">Iteration against ${axis.title}</h2>
      <${ProblemNote} error=${error} retry=${() => [planned, graph, answer].filter((each) => each.error).forEach((each) => each.again())} />
      <div class="steady">${busy && !error && html`<${Progress} task=${answer.task || { state: "running" }} what="Simulating" />`}</div>
      ${!shown && busy && !error && html`<${Waiting} what="the curve" rows=${8} />`}
      ${shown && html`<${Curves} label=${`Iteration over ${name}`} x=${shown.xs} xLabel=${name} yLabel="Iteration" unit=" ms" series=${shown.series} marks=${marks} height=${420} logX=${shown.field !== "memory_gb"} />
      <${Table} caption="Simulated points" first="x" rows=${whatIf.cells} pageSize=${30} columns=${[
        { name: "x", title: column, value: (cell) => cell[shown.field], show: (cell) => compact(cell[shown.field]), numeric: true },
        { name: "policy", title: "Policy", value: (cell) => policyName(cell.policy) },
        { name: "iteration", title: "Iteration", value: (cell) => cell.iteration_s, show: (cell) => (cell.iteration_s == null ? "no plan fits" : milliseconds(cell.iteration_s)), numeric: true },
        { name: "peak", title: "Peak memory", value: (cell) => cell.peak_bytes, show: (cell) => html`${gigabytes(cell.peak_bytes)}${!cell.fits && cell.peak_bytes != null && html` <span class="bad-text">over the budget</span>`}`, numeric: true },
        { name: "bound", title: "No plan is faster than", value: (cell) => cell.lower_bound_s, show: (cell) => milliseconds(cell.lower_bound_s), numeric: true },
      ]} />
      <div class="row"><button type="button" onClick=${() => save("what-if.csv", csv(Object.keys(whatIf.cells[0]), whatIf.cells.map(Object.values)), "text/csv")}>Points (CSV)</button></div>`}
    </section>
  </div>`;
}
