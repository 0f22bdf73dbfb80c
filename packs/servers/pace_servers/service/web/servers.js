// Parameter servers: throughput over workers with its error band, predicted from one worker's steps.
import { html, useMemo, useState } from "../../elements.js";
import { adjust, goTo, linkTo } from "../../address.js";
import { Curves } from "../../curves.js";
import { useLoaded } from "../../loading.js";
import { compact, moment, percent, seconds } from "../../numbers.js";
import { DropFile, Empty, Entry, Field, ProblemNote, Progress, Table, Waiting, csv, readJson, save } from "../../parts.js";
import { getJson, postTask, resourcePath } from "../../service.js";

// What was dropped last: the service keeps predictions, not the steps for others to be asked of.
let steps = null;

const integers = (text) => String(text).split(/[ ,;]+/).filter(Boolean).flatMap((part) => {
  const [from, to] = part.split(/-|:/).map(Number);
  return to ? Array.from({ length: Math.min(to - from + 1, 1000) }, (_, at) => from + at) : [from];
});

export default function Servers({ values }) {
  const [state, setState] = useState({});
  const run = async (document, given = values) => {
    const control = new AbortController();
    setState({ task: { state: "running" }, control });
    try {
      const options = { workers: integers(given.workers || "1-8"), steps: 100, skip: 20, seeds: 3 };
      if (given.servers) options.servers = integers(given.servers);
      if (given.bandwidth) options.bandwidth_gbps = String(given.bandwidth).split(/[ ,;]+/).filter(Boolean).map(Number);
      const made = await postTask("v1/predictions", { steps: document, options }, { signal: control.signal, progress: (task) => setState({ task, control }) });
      setState({});
      goTo("servers", { ...given, prediction: made.id });
    } catch (error) {
      setState(error.name === "AbortError" ? {} : { error });
    }
  };
  const take = async (file) => {
    try {
      steps = await readJson(file);
    } catch (error) {
      setState({ error });
      return;
    }
    await run(steps);
  };
  const example = async () => {
    steps = await (await fetch("web/packs/servers/examples/steps.json")).json();
    await run(steps);
  };
  const ask = (event) => {
    event.preventDefault();
    const form = Object.fromEntries(new FormData(event.target));
    adjust(form);
    if (steps) run(steps, { ...values, ...form });
  };
  const busy = Boolean(state.task);
  return html`<div class="side-by-side">
    <section class="card controls" aria-labelledby="steps-title">
      <h2 id="steps-title">Parameter servers</h2>
      <${DropFile} id="steps-file" label="Drop a steps document" hint="JSON, as pace import tf-run-metadata or pace import profile writes it" busy=${busy} onFile=${take} />
      <button type="button" disabled=${busy} onClick=${example}>Use the example</button>
      <form onSubmit=${ask}>
        <${Field} id="ps-workers" label="Workers" hint="1-8, or 1 2 4 8"><${Entry} id="ps-workers" name="workers" required pattern="[0-9 ,;:\\-]+" value=${values.workers || "1-8"} aria-describedby="ps-workers-hint" /><//>
        <${Field} id="ps-servers" label="Servers" hint="as recorded where empty"><${Entry} id="ps-servers" name="servers" pattern="[0-9 ,;:\\-]*" value=${values.servers || ""} aria-describedby="ps-servers-hint" /><//>
        <${Field} id="ps-bandwidth" label="Bandwidth, Gbit/s" hint="as recorded where empty"><${Entry} id="ps-bandwidth" name="bandwidth" pattern="[0-9 ,;.]*" value=${values.bandwidth || ""} aria-describedby="ps-bandwidth-hint" /><//>
        <button class="chief" type="submit" disabled=${busy || !steps}>Predict</button>
        ${!steps && html`<p class="faint">Choose a steps document first.</p>`}
      </form>
      <${Recent} />
    </section>
    <section class="card" aria-labelledby="throughput-title">
      <h2 id="throughput-title">Throughput over workers</h2>
      <${ProblemNote} error=${state.error} />
      <${Progress} task=${state.task} what="Predicting" cancel=${() => state.control?.abort()} />
      ${values.prediction ? html`<${Prediction} key=${values.prediction} id=${values.prediction} />`
        : !busy && html`<${Empty} title="Nothing is predicted yet"><p>Predicts throughput with more workers, more servers and faster links, from the recorded steps of one worker.</p><//>`}
    </section>
  </div>`;
}

function Recent() {
  const { value } = useLoaded((signal) => getJson("v1/predictions?limit=8", signal), []);
  if (!value?.items.length) return null;
  return html`<h3>Stored predictions</h3><ul class="plain-list">${value.items.map(({ id, name, created_at: at }) => html`<li>
    <a class="name" href=${linkTo("servers", { prediction: id })}>${name}</a> <span class="faint">${moment(at)}</span></li>`)}</ul>`;
}

function Prediction({ id }) {
  const { value, error, again } = useLoaded((signal) => getJson(resourcePath("prediction", id), signal), [id]);
  const made = value?.prediction;
  const shown = useMemo(() => {
    if (!made) return null;
    const xs = [...new Set(made.points.map(({ workers }) => workers))].sort((a, b) => a - b);
    const series = made.curves.map(({ servers, bandwidth_gbps: rate }) => {
      const by = new Map(made.points.filter((point) => point.servers === servers && point.bandwidth_gbps === rate).map((point) => [point.workers, point]));
      const of = (name) => xs.map((x) => by.get(x)?.[name] ?? null);
      return { label: `${servers} server${servers > 1 ? "s" : ""}, ${compact(rate)} Gbit/s`, values: of("throughput"), band: [of("low"), of("high")] };
    });
    return { xs, series };
  }, [made]);
  if (error) return html`<${ProblemNote} error=${error} retry=${again} />`;
  if (!made) return html`<${Waiting} what="the prediction" rows=${8} />`;
  const one = made.curves.length === 1;
  return html`
    <p><span class="name">${made.name}</span>${made.replay_error !== null ? html`, replay error ${percent(made.replay_error)}` : ""}</p>
    <${Curves} label="Throughput over workers" x=${shown.xs} xLabel="Workers" yLabel=${`${made.unit} per second`} whole=${true} series=${shown.series} height=${340} />
    ${made.curves.map((curve) => html`<div class="note">
      ${!one && html`<strong>${curve.servers} servers, ${compact(curve.bandwidth_gbps)} Gbit/s</strong>`}
      <p>${curve.knee_workers ? `The knee is at ${curve.knee_workers} worker${curve.knee_workers > 1 ? "s" : ""}: beyond it, a worker adds less than a quarter of the first worker's throughput.` : "Every worker adds at least a quarter of the first worker's throughput, up to the largest number that was predicted."}</p>
      ${curve.improvements.length > 0 && html`<p>With ${curve.at_workers} worker${curve.at_workers > 1 ? "s" : ""}, ${curve.improvements.map(({ change, gain, low, high }) => `${change} gives ${percent(gain, true)} (${percent(low, true)} to ${percent(high, true)})`).join("; ")}.</p>`}</div>`)}
    ${made.notes.length > 0 && html`<div class="note warn"><ul>${made.notes.map((line) => html`<li>${line}</li>`)}</ul></div>`}
    <${Table} caption="Predicted points" first="workers" rows=${made.points} pageSize=${24} columns=${[
      { name: "workers", title: "Workers", value: (row) => row.workers, numeric: true },
      ...(one ? [] : [{ name: "servers", title: "Servers", value: (row) => row.servers, numeric: true }, { name: "rate", title: "Gbit/s", value: (row) => row.bandwidth_gbps, show: (row) => compact(row.bandwidth_gbps), numeric: true }]),
      { name: "throughput", title: `${made.unit} per second`, value: (row) => row.throughput, show: (row) => compact(row.throughput), numeric: true },
      { name: "band", title: "5 % to 95 %", value: (row) => row.low, show: (row) => `${compact(row.low)} to ${compact(row.high)}`, numeric: true },
      { name: "step", title: "Step", value: (row) => row.step_s, show: (row) => seconds(row.step_s), numeric: true },
      { name: "bottleneck", title: "Bottleneck", value: (row) => row.bottleneck },
      { name: "staleness", title: "Mean staleness", value: (row) => row.mean_staleness, show: (row) => compact(row.mean_staleness), numeric: true },
    ]} />
    <div class="row"><button type="button" onClick=${() => save(`${made.name}.prediction.json`, JSON.stringify(made, null, 2))}>Prediction (JSON)</button>
      <button type="button" onClick=${() => save(`${made.name}.csv`, csv(["workers", "servers", "bandwidth_gbps", "throughput", "low", "high", "step_s", "bottleneck"],
        made.points.map((p) => [p.workers, p.servers, p.bandwidth_gbps, p.throughput, p.low, p.high, p.step_s, p.bottleneck])), "text/csv")}>Points (CSV)</button></div>`;
}
