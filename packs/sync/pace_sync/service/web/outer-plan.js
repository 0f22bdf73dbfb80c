// A plan of streaming DiLoCo: one period of steps, and the fragments that are averaged meanwhile.
import { html, useMemo, useRef } from "../../elements.js";
import { Gantt } from "../../gantt.js";
import { KINDS, groupKind } from "../../gantt-chart.js";
import { bytes, count, percent, seconds } from "../../numbers.js";
import { Table, save } from "../../parts.js";

const layersOf = ({ parts }) => (parts.length > 1 ? `${parts[0].layer} and ${parts.length - 1} more` : parts[0].layer);
const fragmentBytes = ({ parts }) => parts.reduce((sum, part) => sum + part.size_bytes, 0);

// Steps of a period: at a boundary workers wait first, and then run the next step.
function stepsLane(plan, sync) {
  const waits = new Map(plan.waits.map(({ step, wait_s: wait }) => [step, wait]));
  const starts = new Float64Array(plan.period_steps);
  const ends = new Float64Array(plan.period_steps);
  for (let step = 0, now = 0; step < plan.period_steps; step += 1) {
    now += waits.get(step) || 0;
    starts[step] = now;
    now += sync.step_s;
    ends[step] = now;
  }
  return { label: "steps", starts, ends, kinds: new Uint8Array(plan.period_steps).fill(KINDS.compute), text: (item) => String(item + 1),
    describe: (item) => [`step ${item + 1}`, `${seconds(starts[item])} to ${seconds(ends[item])}`,
      ...(waits.has(item) ? [`workers wait ${seconds(waits.get(item))} for a mean before it`] : [])] };
}

// A transfer that ends in the next period is drawn at the start, too: each period is like the one before.
function linkLane(plan, link) {
  const period = plan.predicted.period_s;
  const pieces = plan.fragments.flatMap((fragment, number) => {
    if (fragment.link !== link) return [];
    const start = fragment.start_s % period;
    const end = start + fragment.end_s - fragment.start_s;
    return end <= period ? [[start, end, number]] : [[start, period, number], [0, end - period, number]];
  }).sort((one, other) => one[0] - other[0]);
  const fragmentAt = (item) => plan.fragments[pieces[item][2]];
  return { label: link, starts: Float64Array.from(pieces, ([start]) => start), ends: Float64Array.from(pieces, ([, end]) => end),
    kinds: Uint8Array.from(pieces, ([, , number]) => groupKind(number)), text: (item) => String(pieces[item][2] + 1),
    describe: (item) => {
      const fragment = fragmentAt(item);
      return [`fragment ${pieces[item][2] + 1}`, layersOf(fragment), bytes(fragmentBytes(fragment)), `takes ${seconds(fragment.end_s - fragment.start_s)}`,
        `sent after step ${fragment.send_step}, applied ${count(fragment.delay_steps)} step${fragment.delay_steps === 1 ? "" : "s"} later`];
    } };
}

function outerBands(plan, sync) {
  const { predicted, bound } = plan;
  return [{ title: `One period of steps, and fragments on each link: ${seconds(predicted.period_s)}`, short: seconds(predicted.period_s),
    lanes: [stepsLane(plan, sync), ...sync.links.map(({ name }) => linkLane(plan, name))],
    marks: [{ at: predicted.period_s, name: "end" }, { at: bound.period_s, name: "bound" }] }];
}

export function OuterPlan({ resource, sync }) {
  const { plan } = resource;
  const { predicted, bound } = plan;
  const chart = useRef(null);
  const bands = useMemo(() => outerBands(plan, sync), [resource.id]);
  const best = plan.rivals.reduce((one, other) => (!one || other.utilization > one.utilization ? other : one), null);
  const longest = Math.max(...plan.fragments.map(({ delay_steps: delay }) => delay));
  const rows = [{ rule: "PACE", num_fragments: plan.fragments.length, delay_steps: longest, utilization: predicted.utilization }, ...plan.rivals];
  return html`
    <p class="name">${resource.name}: ${count(sync.layers.length)} layers, ${bytes(sync.layers.reduce((sum, each) => sum + each.size_bytes, 0))}, averaged over ${count(sync.workers)} workers every ${count(plan.period_steps)} steps</p>
    <dl class="numbers">
      ${best && html`<div><dt>${best.rule}, simulated</dt><dd>${percent(best.utilization)}</dd></div>`}
      <div class="chief"><dt>Utilization with PACE, predicted</dt><dd>${percent(predicted.utilization)}</dd></div>
      <div><dt>No plan exceeds</dt><dd>${percent(bound.utilization)}</dd></div>
      <div><dt>Fragments</dt><dd>${count(plan.fragments.length)}</dd></div>
      <div><dt>Most fragments under way</dt><dd>${count(predicted.most_under_way)}</dd></div>
    </dl>
    <p>The utilization is the share of time in which steps run. Method: ${plan.method}.</p>
    <${Gantt} label="Fragments on their way" bands=${bands} end=${Math.max(predicted.period_s, 1e-9) * 1.01} chartRef=${chart} />
    <ul class="legend"><li><i class="k0"></i>steps</li><li><i class="k6"></i><i class="k7"></i><i class="k8"></i>fragments</li><li><i class="line end"></i>end of the period</li><li><i class="line bound"></i>no plan is faster</li></ul>
    <h3>Other rules</h3>
    <${Table} caption="Rules" first="utilization" descending=${true} rows=${rows} rowKey=${({ rule }) => rule} columns=${[
      { name: "rule", title: "Rule", value: ({ rule }) => rule },
      { name: "utilization", title: "Utilization", value: ({ utilization }) => utilization, show: ({ utilization }) => percent(utilization), numeric: true },
      { name: "num", title: "Fragments", value: ({ num_fragments: num }) => num, show: ({ num_fragments: num }) => count(num), numeric: true },
      { name: "delay", title: "Longest delay, steps", value: ({ delay_steps: delay }) => delay, show: ({ delay_steps: delay }) => count(delay), numeric: true },
    ]} />
    <h3>Fragments</h3>
    <${Table} caption="Fragments" first="number" rows=${plan.fragments.map((fragment, number) => ({ ...fragment, number }))} pageSize=${25} columns=${[
      { name: "number", title: "Fragment", value: ({ number }) => number, show: ({ number }) => number + 1, numeric: true },
      { name: "layers", title: "Layers", value: ({ parts }) => parts[0].layer, show: ({ parts }) => html`<span class="name">${parts[0].layer}</span>${parts.length > 1
        && html` <details class="inline"><summary>and ${parts.length - 1} more</summary><span class="name">${parts.slice(1).map(({ layer }) => layer).join(", ")}</span></details>`}` },
      { name: "size", title: "Size", value: fragmentBytes, show: (fragment) => bytes(fragmentBytes(fragment)), numeric: true },
      { name: "link", title: "Link", value: ({ link }) => link },
      { name: "sent", title: "After step", value: ({ send_step: step }) => step, show: ({ send_step: step }) => count(step), numeric: true },
      { name: "delay", title: "Delay, steps", value: ({ delay_steps: delay }) => delay, show: ({ delay_steps: delay }) => count(delay), numeric: true },
      { name: "takes", title: "Transfer", value: ({ start_s: start, end_s: end }) => end - start, show: ({ start_s: start, end_s: end }) => seconds(end - start), numeric: true },
    ]} />
    <div class="row"><button type="button" onClick=${() => save(`${resource.name}-plan.json`, JSON.stringify(plan, null, 2))}>Plan (JSON)</button>
      <button type="button" onClick=${() => save(`${resource.name}.svg`, chart.current.toSvg(), "image/svg+xml")}>Chart as SVG</button></div>`;
}
