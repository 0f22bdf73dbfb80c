// Sync plans. New weights on their way to rollout engines: the link, and each receiver's own work. Shards, deltas, streaming DiLoCo.
import { html, useMemo, useRef, useState } from "../../elements.js";
import { goTo, useTitle } from "../../address.js";
import { Gantt } from "../../gantt.js";
import { groupKind } from "../../gantt-chart.js";
import { DeltaPlan } from "./delta-plan.js";
import { useLoaded } from "../../loading.js";
import { OuterPlan } from "./outer-plan.js";
import { ReshardPlan } from "./reshard-plan.js";
import { bytes, count, milliseconds, percent, seconds } from "../../numbers.js";
import { DropFile, Empty, ProblemNote, Progress, Table, Waiting, readJson, save } from "../../parts.js";
import { getJson, postTask, resourcePath } from "../../service.js";

const MOST_LANES = 32;

export default function Weights({ values }) {
  const [state, setState] = useState({});
  const plan = (load) => async (from) => {
    setState({ task: { state: "running" } });
    try {
      const sync = await load(from);
      if (sync?.problem_sha256) {
        throw Object.assign(new Error("This is a plan. Drop the document that it was made from: the service plans it again."), { title: "This is no document to plan" });
      }
      const made = await postTask("v1/sync-plans", { sync }, { progress: (task) => setState({ task }) });
      setState({});
      goTo("weights", { plan: made.id });
    } catch (error) {
      setState({ error });
    }
  };
  const busy = Boolean(state.task);
  const example = (name) => plan(async () => (await fetch(`web/packs/sync/examples/${name}.json`)).json());
  return html`<div class="side-by-side">
    <section class="card controls" aria-labelledby="weights-title">
      <h2 id="weights-title">New weights on time</h2>
      <${DropFile} id="sync-file" label="Drop a document" hint="JSON: weight-sync, resharding, delta-sync or outer-sync" busy=${busy} onFile=${plan(readJson)} />
      <button type="button" disabled=${busy} onClick=${example("weight-sync")}>Use the example</button>
      <button type="button" disabled=${busy} onClick=${example("resharding")}>Example of shards</button>
      <button type="button" disabled=${busy} onClick=${example("delta-sync")}>Example of deltas</button>
      <button type="button" disabled=${busy} onClick=${example("outer-sync")}>Example of streaming DiLoCo</button>
      <p class="faint">The same as <code>pace sync plan</code> and <code>pace diloco plan</code>.</p>
    </section>
    <section class="card" aria-labelledby="sync-title">
      <h2 id="sync-title">Sync plan</h2>
      <${ProblemNote} error=${state.error} />
      ${busy && html`<${Progress} task=${state.task} what="Planning" />`}
      ${values.plan ? html`<${Planned} key=${values.plan} id=${values.plan} />`
        : !busy && html`<${Empty} title="Nothing is planned yet"><p>Drop a document, or use an example. For rollout engines, the plan says which tensors share a bucket, in which order buckets go, and how short any pause can be. For shards, it says who sends which of them to whom. For deltas, it says how often whole weights are sent. For streaming DiLoCo, it says which fragments are averaged when, and how high the utilization can be.</p><//>`}
    </section>
  </div>`;
}

// Seconds from the end of a transfer at the sender until the bucket is whole at each receiver.
function lagsOf({ fan_out: fanOut, receivers }) {
  let sum = 0;
  return receivers.map(({ hop_s: hop }) => (fanOut === "direct" ? 0 : (sum += hop || 0)));
}

const bucketBytes = ({ parts }) => parts.reduce((sum, part) => sum + part.size_bytes, 0);

function syncBands(plan, sync) {
  const { buckets, predicted } = plan;
  const names = buckets.map(({ parts }) => (parts.length > 1 ? `${parts[0].tensor} and ${parts.length - 1} more` : parts[0].tensor));
  const kinds = Uint8Array.from(buckets, (_, at) => groupKind(at));
  const carried = buckets.map((_, at) => ({ gradients: [at] }));
  const lane = (label, starts, ends) => ({
    label, starts: Float64Array.from(starts), ends: Float64Array.from(ends), kinds, carried: (item) => carried[item], text: (item) => String(item + 1),
    describe: (item) => [`bucket ${item + 1}`, names[item], bytes(bucketBytes(buckets[item])), `${seconds(starts[item])} to ${seconds(ends[item])}, takes ${seconds(ends[item] - starts[item])}`],
  });
  const link = lane("link", buckets.map((each) => each.start_s), buckets.map((each) => each.end_s));
  const lags = lagsOf(sync);
  const receivers = sync.receivers.slice(0, MOST_LANES).map(({ name }, number) => {
    const ends = buckets.map((each) => each.finished_s[number]);
    return lane(name, buckets.map((each, at) => Math.min(Math.max(each.end_s + lags[number], at ? ends[at - 1] : 0), ends[at])), ends);
  });
  return [{ title: `Buckets on the link, and each receiver's own work: ${seconds(predicted.pause_s)}`, short: seconds(predicted.pause_s), lanes: [link, ...receivers],
    marks: [{ at: predicted.pause_s, name: "end" }, { at: plan.bound.bound_s, name: "bound" }] }];
}

const ruleName = ({ rule, largest_bytes: size }) => (size == null ? "One message for each tensor" : `Buckets of ${bytes(size)}`);

function Planned({ id }) {
  const loaded = useLoaded(async (signal) => {
    const path = resourcePath("sync-plan", id);
    const [resource, sync] = await Promise.all([getJson(path, signal), getJson(`${path}/sync`, signal)]);
    return { resource, sync };
  }, [id]);
  const { resource, sync } = loaded.value || {};
  useTitle(resource?.name, "Weights");
  if (!resource) return html`<${ProblemNote} error=${loaded.error} retry=${loaded.again} />${!loaded.error && html`<${Waiting} what="the plan" rows=${8} />`}`;
  const Plan = sync.layers ? OuterPlan : sync.senders ? ReshardPlan : sync.sync ? DeltaPlan : BucketPlan;
  return html`<${Plan} resource=${resource} sync=${sync} />`;
}

function BucketPlan({ resource, sync }) {
  const chart = useRef(null);
  const { plan } = resource;
  const bands = useMemo(() => syncBands(plan, sync), [resource.id]);
  const { predicted, bound } = plan;
  const fixed = plan.rivals.filter(({ pause_s: pause }) => pause != null);
  const best = fixed.reduce((one, other) => (!one || other.pause_s < one.pause_s ? other : one), null);
  const rows = [{ name: "PACE", num: plan.buckets.length, pause: predicted.pause_s }, ...plan.rivals.map((rival) => ({ name: ruleName(rival), num: rival.num_buckets, pause: rival.pause_s }))];
  const limited = predicted.link_s >= predicted.work_s ? `The link limits this pause: it is busy for ${seconds(predicted.link_s)}` : `The receivers' own work limits this pause: it takes ${seconds(predicted.work_s)}`;
  return html`
    <p class="name">${resource.name}: ${count(sync.tensors.length)} tensors, ${bytes(sync.tensors.reduce((sum, each) => sum + each.size_bytes, 0))}, to ${count(sync.receivers.length)} receiver${sync.receivers.length > 1 ? "s" : ""}</p>
    <dl class="numbers">
      ${best && html`<div><dt>${ruleName(best)}, simulated</dt><dd>${seconds(best.pause_s)}</dd></div>`}
      <div class="chief"><dt>Pause with PACE, predicted</dt><dd>${seconds(predicted.pause_s)}
        ${best && html`<span class=${best.pause_s - predicted.pause_s > 1e-9 ? "good" : "faint"}>${percent(predicted.pause_s / best.pause_s - 1, true)}</span>`}</dd></div>
      <div><dt>No plan is faster than</dt><dd>${seconds(bound.bound_s)}</dd></div>
      <div><dt>Gap</dt><dd>${percent(predicted.gap)}</dd></div>
      <div><dt>Buckets</dt><dd>${count(plan.buckets.length)}</dd></div>
    </dl>
    <p>${limited}. The bound holds for every way to cut tensors and fill buckets, in any order.</p>
    <${Gantt} label="Weights on their way" bands=${bands} end=${Math.max(predicted.pause_s, 1e-9) * 1.01} chartRef=${chart} />
    <ul class="legend"><li><i class="k6"></i><i class="k7"></i><i class="k8"></i>buckets</li><li><i class="line end"></i>end of the pause</li><li><i class="line bound"></i>no plan is faster</li></ul>
    ${sync.receivers.length > MOST_LANES && html`<p class="faint">The chart shows the first ${MOST_LANES} of ${count(sync.receivers.length)} receivers.</p>`}
    <h3>Other rules</h3>
    <${Table} caption="Rules" first="pause" rows=${rows} rowKey=${({ name }) => name} columns=${[
      { name: "rule", title: "Rule", value: ({ name }) => name },
      { name: "pause", title: "Pause, simulated", value: ({ pause }) => pause, show: ({ pause }) => (pause == null ? "does not fit the credit" : milliseconds(pause)), numeric: true },
      { name: "against", title: "Against PACE", value: ({ pause }) => pause, show: ({ name, pause }) => (name === "PACE" || pause == null ? "–" : percent(pause / predicted.pause_s - 1, true)), numeric: true },
      { name: "num", title: "Buckets", value: ({ num }) => num, show: ({ num }) => count(num), numeric: true },
    ]} />
    <h3>Buckets</h3>
    <${Table} caption="Buckets" first="start" rows=${plan.buckets.map((bucket, number) => ({ ...bucket, number }))} pageSize=${25} columns=${[
      { name: "start", title: "Bucket", value: ({ number }) => number, show: ({ number }) => number + 1, numeric: true },
      { name: "tensors", title: "Tensors", value: ({ parts }) => parts[0].tensor, show: ({ parts }) => html`<span class="name">${parts[0].tensor}</span>${parts.length > 1
        && html` <details class="inline"><summary>and ${parts.length - 1} more</summary><span class="name">${parts.slice(1).map(({ tensor }) => tensor).join(", ")}</span></details>`}` },
      { name: "size", title: "Size", value: bucketBytes, show: (bucket) => bytes(bucketBytes(bucket)), numeric: true },
      { name: "sent", title: "Sent", value: ({ start_s: at }) => at, show: ({ start_s: at }) => milliseconds(at), numeric: true },
      { name: "left", title: "Until", value: ({ end_s: at }) => at, show: ({ end_s: at }) => milliseconds(at), numeric: true },
      { name: "finished", title: "Finished by all", value: (bucket) => Math.max(...bucket.finished_s), show: (bucket) => milliseconds(Math.max(...bucket.finished_s)), numeric: true },
    ]} />
    <div class="row"><button type="button" onClick=${() => save(`${resource.name}-plan.json`, JSON.stringify(plan, null, 2))}>Plan (JSON)</button>
      <button type="button" onClick=${() => save(`${resource.name}.svg`, chart.current.toSvg(), "image/svg+xml")}>Chart as SVG</button></div>`;
}
