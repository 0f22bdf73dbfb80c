// A plan of resharding: which sender sends which boxes of tensors along which receivers, and when.
import { html, useMemo, useRef } from "../../elements.js";
import { Gantt } from "../../gantt.js";
import { groupKind } from "../../gantt-chart.js";
import { bytes, count, milliseconds, percent, seconds } from "../../numbers.js";
import { Table, save } from "../../parts.js";

const MOST_LANES = 32;
const MOST_BOXES = 50;

// A box as Python would index it.
export const boxName = ({ tensor, begin, shape }) => `${tensor}[${begin.map((low, axis) => `${low}:${low + shape[axis]}`).join(", ")}]`;
const chain = ({ receivers }) => receivers.join(" → ");
const boxesOf = ({ boxes }) => (boxes.length > 1 ? `${boxName(boxes[0])} and ${boxes.length - 1} more` : boxName(boxes[0]));

function lane(label, pieces, describe) {
  return { label, starts: Float64Array.from(pieces, ({ start }) => start), ends: Float64Array.from(pieces, ({ end }) => end), kinds: Uint8Array.from(pieces, ({ kind }) => kind),
    carried: (item) => pieces[item].carried, text: (item) => pieces[item].text, describe };
}

// All streams run at the same time, so each has a lane. Receivers have one each: until their last byte has arrived, and until they have finished.
function reshardBands(plan, problem) {
  const { predicted, streams } = plan;
  const senders = new Map(problem.senders.map(({ name }, number) => [name, number]));
  const shown = streams.slice(0, MOST_LANES).map((stream, number) => lane(stream.sender,
    [{ start: 0, end: stream.end_s, kind: groupKind(senders.get(stream.sender)), text: `to ${chain(stream)}`, carried: { gradients: [number] } }],
    () => [`${stream.sender} sends to ${chain(stream)}`, boxesOf(stream), bytes(stream.size_bytes), `until ${seconds(stream.end_s)}`,
      stream.bytes_per_s == null ? "at its fair share of the links" : `at most ${bytes(stream.bytes_per_s)}/s`]));
  const hops = new Map(problem.receivers.map(({ name, hop_s: hop }) => [name, hop || 0]));
  const arrived = new Map();
  const carried = new Map(problem.receivers.map(({ name }) => [name, []]));
  streams.forEach((stream, number) => {
    let lag = 0;
    for (const name of stream.receivers) {
      lag += hops.get(name);
      arrived.set(name, Math.max(arrived.get(name) || 0, stream.end_s + lag));
      carried.get(name).push(number);
    }
  });
  const receivers = problem.receivers.slice(0, MOST_LANES).map(({ name }, number) => {
    const end = predicted.finished_s[number];
    const last = Math.min(arrived.get(name) || 0, end);
    const from = [...new Set(carried.get(name).map((each) => streams[each].sender))];
    const pieces = [{ start: 0, end: last, kind: 0, text: "", carried: { gradients: carried.get(name) } }, { start: last, end, kind: 1, text: "", carried: { gradients: [] } }].filter(({ start, end: until }) => until > start);
    return lane(name, pieces, (item) => (item ? [`${name} still works on what arrived`, `from ${seconds(last)} to ${seconds(end)}`]
      : [`${name} receives from ${from.join(", ")}`, `its last byte arrives after ${seconds(last)}`, `finished after ${seconds(end)}`]));
  });
  return [
    { title: "Streams from senders to receivers, all at the same time", short: "Streams", lanes: shown, marks: [] },
    { title: `Receivers, until each has finished: ${seconds(predicted.pause_s)}`, short: `Receivers: ${seconds(predicted.pause_s)}`, lanes: receivers,
      marks: [{ at: predicted.pause_s, name: "end" }, { at: plan.bound.bound_s, name: "bound" }] },
  ].filter(({ lanes }) => lanes.length);
}

const PROOFS = { senders: "the links of senders that hold what nobody else holds", link: "the link of a receiver", work: "the own work of a receiver" };
const RULES = { "gather, then broadcast": "Gather at one sender, then broadcast", "first holder to each receiver": "First holder to each receiver" };

function Boxes({ stream }) {
  const [first, ...more] = stream.boxes.slice(0, MOST_BOXES).map(boxName);
  const hidden = stream.boxes.length - MOST_BOXES;
  return html`<span class="name">${first}</span>${more.length > 0 && html` <details class="inline"><summary>and ${stream.boxes.length - 1} more</summary>
    <span class="name">${more.join(", ")}${hidden > 0 ? `, and ${count(hidden)} more in the plan` : ""}</span></details>`}`;
}

export function ReshardPlan({ resource, sync: problem }) {
  const { plan } = resource;
  const { predicted, bound, streams } = plan;
  const chart = useRef(null);
  const bands = useMemo(() => reshardBands(plan, problem), [resource.id]);
  const best = plan.rivals.reduce((one, other) => (!one || other.pause_s < one.pause_s ? other : one), null);
  const rows = [{ rule: "PACE", pause: predicted.pause_s }, ...plan.rivals.map(({ rule, pause_s: pause }) => ({ rule: RULES[rule] || rule, pause }))];
  const total = streams.reduce((sum, stream) => sum + stream.size_bytes, 0);
  const paced = streams.some(({ bytes_per_s: rate }) => rate != null);
  return html`
    <p class="name">${resource.name}: ${count(plan.tensors.length)} tensor${plan.tensors.length > 1 ? "s" : ""}, from ${count(problem.senders.length)} sender${problem.senders.length > 1 ? "s" : ""} to ${count(problem.receivers.length)} receiver${problem.receivers.length > 1 ? "s" : ""}</p>
    <dl class="numbers">
      ${best && html`<div><dt>${RULES[best.rule] || best.rule}, simulated</dt><dd>${seconds(best.pause_s)}</dd></div>`}
      <div class="chief"><dt>Pause with PACE, predicted</dt><dd>${seconds(predicted.pause_s)}
        ${best && best.pause_s > 0 && html`<span class=${best.pause_s - predicted.pause_s > 1e-9 ? "good" : "faint"}>${percent(predicted.pause_s / best.pause_s - 1, true)}</span>`}</dd></div>
      <div><dt>No plan is faster than</dt><dd>${seconds(bound.bound_s)}</dd></div>
      <div><dt>Gap</dt><dd>${percent(predicted.gap)}</dd></div>
      <div><dt>Bytes that senders send</dt><dd>${bytes(total)}</dd></div>
    </dl>
    ${bound.hosts.length > 0 && html`<p>The bound is set by ${PROOFS[bound.kind]}: <span class="name">${bound.hosts.slice(0, 8).join(", ")}${bound.hosts.length > 8 ? ` and ${bound.hosts.length - 8} more` : ""}</span>. ${paced
      ? "Each stream has a rate limit, so that all end together." : "Streams share links fairly, without rate limits."}</p>`}
    ${bands.length > 0 && html`<${Gantt} label="Shards on their way" bands=${bands} end=${Math.max(predicted.pause_s, 1e-9) * 1.01} chartRef=${chart} />
    <ul class="legend"><li><i class="k6"></i><i class="k7"></i><i class="k8"></i>streams, a color for each sender</li><li><i class="k0"></i>shards arrive</li><li><i class="k1"></i>own work on the rest</li><li><i class="line end"></i>end of the pause</li><li><i class="line bound"></i>no plan is faster</li></ul>`}
    ${Math.max(streams.length, problem.receivers.length) > MOST_LANES && html`<p class="faint">The chart shows the first ${MOST_LANES} of ${count(streams.length)} streams and of ${count(problem.receivers.length)} receivers.</p>`}
    <h3>Other rules</h3>
    <${Table} caption="Rules" first="pause" rows=${rows} rowKey=${({ rule }) => rule} columns=${[
      { name: "rule", title: "Rule", value: ({ rule }) => rule },
      { name: "pause", title: "Pause, simulated", value: ({ pause }) => pause, show: ({ pause }) => milliseconds(pause), numeric: true },
      { name: "against", title: "Against PACE", value: ({ pause }) => pause, show: ({ rule, pause }) => (rule === "PACE" || !predicted.pause_s ? "–" : percent(pause / predicted.pause_s - 1, true)), numeric: true },
    ]} />
    <h3>Streams</h3>
    <${Table} caption="Streams" first="sender" rows=${streams} pageSize=${25} columns=${[
      { name: "sender", title: "From", value: ({ sender }) => sender },
      { name: "receivers", title: "To", value: chain },
      { name: "boxes", title: "Shards", value: ({ boxes }) => boxName(boxes[0]), show: (stream) => html`<${Boxes} stream=${stream} />` },
      { name: "size", title: "Size", value: ({ size_bytes: size }) => size, show: ({ size_bytes: size }) => bytes(size), numeric: true },
      { name: "rate", title: "Rate", value: ({ bytes_per_s: rate }) => rate, show: ({ bytes_per_s: rate }) => (rate == null ? "fair share" : `${bytes(rate)}/s`), numeric: true },
      { name: "end", title: "Until", value: ({ end_s: end }) => end, show: ({ end_s: end }) => milliseconds(end), numeric: true },
    ]} />
    <div class="row"><button type="button" onClick=${() => save(`${resource.name}-plan.json`, JSON.stringify(plan, null, 2))}>Plan (JSON)</button>
      ${bands.length > 0 && html`<button type="button" onClick=${() => save(`${resource.name}.svg`, chart.current.toSvg(), "image/svg+xml")}>Chart as SVG</button>`}</div>`;
}
