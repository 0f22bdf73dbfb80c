// A plan of deltas: versions of which only what changed is sent, and how often one goes whole.
import { html, useMemo, useRef } from "../../elements.js";
import { Gantt } from "../../gantt.js";
import { bytes, count, milliseconds, percent, seconds } from "../../numbers.js";
import { Table, save } from "../../parts.js";

const SHOWN_VERSIONS = 20;
const MOST_VERSIONS = 200;
const WHOLE = 0;
const DELTA = 6;
const ASKED = 7;
const NAMES = { anchors: "Every version whole", ask: "Deltas, whole for those who ask", wait: "Deltas, and periodic anchors" };
const SHORT = { anchors: "always whole", ask: "ask", wait: "anchors" };

// The pauses of so many versions, one after another. What those who ask cost is spread over all versions.
function versionsLane(rule, plan, num, every) {
  const { anchor_s: anchor, delta_s: delta, choices } = plan;
  const mean = choices.find((choice) => choice.rule === rule).mean_pause_s;
  const pieces = [];
  let now = 0;
  const add = (version, kind, takes) => {
    if (takes > 0) pieces.push({ version, kind, start: now, end: now + takes });
    now += takes;
  };
  for (let version = 1; version <= num; version += 1) {
    if (rule === "anchors") add(version, WHOLE, mean);
    else if (rule === "ask") {
      add(version, DELTA, delta);
      add(version, ASKED, mean - delta);
    } else add(version, (version - 1) % every ? DELTA : WHOLE, (version - 1) % every ? delta : anchor);
  }
  const told = { [WHOLE]: "all weights", [DELTA]: "what changed", [ASKED]: "whole weights for those who ask, on average" };
  return { end: now, lane: { label: SHORT[rule], starts: Float64Array.from(pieces, ({ start }) => start), ends: Float64Array.from(pieces, ({ end }) => end), kinds: Uint8Array.from(pieces, ({ kind }) => kind),
    text: (item) => String(pieces[item].version),
    describe: (item) => [`version ${pieces[item].version}: ${told[pieces[item].kind]}`, `takes ${seconds(pieces[item].end - pieces[item].start)}`] } };
}

function deltaBands(plan, num, every) {
  const made = ["anchors", "ask", "wait"].map((rule) => versionsLane(rule, plan, num, every));
  return { end: Math.max(...made.map(({ end }) => end)), bands: [{ title: `Pauses of ${count(num)} versions, one after another`, short: `Pauses of ${count(num)} versions`, lanes: made.map(({ lane }) => lane), marks: [] }] };
}

export function DeltaPlan({ resource, sync: problem }) {
  const { plan } = resource;
  const chart = useRef(null);
  const every = problem.most_versions;
  const num = Math.min(Math.max(every, SHOWN_VERSIONS), MOST_VERSIONS);
  const { bands, end } = useMemo(() => deltaBands(plan, num, every), [resource.id]);
  const of = Object.fromEntries(plan.choices.map((choice) => [choice.rule, choice]));
  const chosen = of[plan.rule];
  const always = of.anchors;
  const against = (value, whole) => (whole > 0 ? percent(value / whole - 1, true) : "–");
  const period = { anchors: "every version", ask: "when a receiver asks", wait: `every ${count(every)} versions` }[plan.rule];
  const total = problem.sync.tensors.reduce((sum, each) => sum + each.size_bytes, 0);
  const receivers = problem.sync.receivers.length;
  return html`
    <p class="name">${resource.name}: ${count(problem.sync.tensors.length)} tensors, ${bytes(total)}, of which ${percent(problem.changed)} change from version to version, to ${count(receivers)} receiver${receivers > 1 ? "s" : ""}</p>
    <dl class="numbers">
      <div><dt>Mean pause, always whole</dt><dd>${seconds(always.mean_pause_s)}</dd></div>
      <div class="chief"><dt>Mean pause with PACE, predicted</dt><dd>${seconds(chosen.mean_pause_s)}
        ${plan.rule !== "anchors" && html`<span class="good">${against(chosen.mean_pause_s, always.mean_pause_s)}</span>`}</dd></div>
      <div><dt>No rule takes less than</dt><dd>${seconds(plan.bound_s)}</dd></div>
      <div><dt>Expected bytes of a version</dt><dd>${bytes(Math.round(chosen.mean_bytes))}
        ${plan.rule !== "anchors" && html`<span class=${chosen.mean_bytes < always.mean_bytes ? "good" : "faint"}>${against(chosen.mean_bytes, always.mean_bytes)}</span>`}</dd></div>
      <div><dt>Whole weights are sent</dt><dd>${period}</dd></div>
    </dl>
    <p>${plan.rule === "anchors" ? "Deltas do not help: every version is sent whole." : html`The pause of a delta is ${seconds(plan.delta_s)}, that of whole weights with their hashes ${seconds(plan.anchor_s)}. A version of which more than ${bytes(plan.anchor_above_bytes)} changed is sent whole.`}</p>
    <${Gantt} label="Pauses of versions" bands=${bands} end=${Math.max(end, 1e-9) * 1.01} chartRef=${chart} />
    <ul class="legend"><li><i class="k0"></i>all weights</li><li><i class="k6"></i>what changed</li><li><i class="k7"></i>whole weights for those who ask, on average</li></ul>
    <h3>Rules</h3>
    <${Table} caption="Rules" first="pause" rows=${plan.choices} rowKey=${({ rule }) => rule} columns=${[
      { name: "rule", title: "Rule", value: ({ rule }) => NAMES[rule], show: ({ rule }) => `${NAMES[rule]}${rule === "wait" ? ` every ${count(every)} versions` : ""}${rule === plan.rule ? " (PACE)" : ""}` },
      { name: "pause", title: "Mean pause", value: ({ mean_pause_s: pause }) => pause, show: ({ mean_pause_s: pause }) => milliseconds(pause), numeric: true },
      { name: "against", title: "Compared with always whole", value: ({ mean_pause_s: pause }) => pause, show: ({ rule, mean_pause_s: pause }) => (rule === "anchors" ? "–" : against(pause, always.mean_pause_s)), numeric: true },
      { name: "bytes", title: "Expected bytes", value: ({ mean_bytes: size }) => size, show: ({ mean_bytes: size }) => bytes(Math.round(size)), numeric: true },
      { name: "fewer", title: "Bytes against whole", value: ({ mean_bytes: size }) => size, show: ({ rule, mean_bytes: size }) => (rule === "anchors" ? "–" : against(size, always.mean_bytes)), numeric: true },
    ]} />
    <div class="row"><button type="button" onClick=${() => save(`${resource.name}-plan.json`, JSON.stringify(plan, null, 2))}>Plan (JSON)</button>
      <button type="button" onClick=${() => save(`${resource.name}.svg`, chart.current.toSvg(), "image/svg+xml")}>Chart as SVG</button></div>`;
}
