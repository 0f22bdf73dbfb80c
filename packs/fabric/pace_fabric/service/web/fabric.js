// Fabric: the transfer plan of a batch of updates as a Gantt chart of links.
import { html, useEffect, useMemo, useState } from "../../elements.js";
import { adjust } from "../../address.js";
import { Gantt } from "../../gantt.js";
import { groupKind } from "../../gantt-chart.js";
import { bytes, percent, seconds } from "../../numbers.js";
import { DropFile, Empty, Field, ProblemNote, Progress, Table, readJson, save } from "../../parts.js";
import { ask } from "../../service.js";

const KEPT = "pace.fabric";
const kept = () => JSON.parse(sessionStorage.getItem(KEPT) || "{}");

export default function Fabric({ values }) {
  const [given, setGiven] = useState(kept);
  const [state, setState] = useState({});
  const options = { order: values.order || "search", late: values.late || "drop", rule: values.rule || "strict" };
  const keep = (changes) => {
    const next = { ...given, ...changes };
    setGiven(next);
    try {
      sessionStorage.setItem(KEPT, JSON.stringify(next));
    } catch {
      // larger than the browser keeps: it lives as long as the page
    }
  };
  const take = (part) => async (file) => {
    try {
      keep({ [part]: await readJson(file) });
    } catch (error) {
      setState({ error });
    }
  };
  const example = async () => {
    const [network, batch] = await Promise.all(["network", "batch"].map(async (name) => (await fetch(`web/packs/fabric/examples/${name}.json`)).json()));
    keep({ network, batch });
  };
  useEffect(() => { if (values.example && !given.network) example().catch(() => {}); }, []);
  useEffect(() => {
    if (!given.network || !given.batch) return undefined;
    const control = new AbortController();
    setState((before) => ({ plan: before.plan, busy: true }));
    const body = JSON.stringify({ network: given.network, batch: given.batch, options });
    ask("v1/transfer-plans", { method: "POST", body, more: { "Content-Type": "application/json" }, signal: control.signal })
      .then((answer) => answer.json()).then((plan) => setState({ plan }), (error) => { if (!control.signal.aborted) setState({ error }); });
    return () => control.abort();
  }, [given, JSON.stringify(options)]);
  const choose = (name, label, choices) => html`<${Field} id=${`plan-${name}`} label=${label}><select id=${`plan-${name}`} value=${options[name]} onChange=${(event) => adjust({ [name]: event.target.value })}>
    ${choices.map((choice) => html`<option value=${choice}>${choice}</option>`)}</select><//>`;
  return html`<div class="side-by-side">
    <section class="card controls" aria-labelledby="fabric-title">
      <h2 id="fabric-title">Fabric</h2>
      <${DropFile} id="network-file" label=${given.network ? "Another network" : "Drop a network"} hint=${given.network ? `${given.network.hosts?.length ?? 0} hosts` : "JSON: hosts and their links"} onFile=${take("network")} />
      <${DropFile} id="batch-file" label=${given.batch ? "Another batch" : "Drop a batch of updates"} hint=${given.batch ? `${given.batch.updates?.length ?? 0} updates` : "JSON: updates, their hosts and sizes"} onFile=${take("batch")} />
      <button type="button" onClick=${() => { adjust({ example: "1" }); example().catch((error) => setState({ error })); }}>Use the example</button>
      ${choose("order", "Order", ["greedy", "search", "exact"])}
      ${choose("late", "Late updates", ["drop", "hold", "pace", "downweight"])}
      ${choose("rule", "Rule", ["strict", "paper"])}
    </section>
    <section class="card" aria-labelledby="plan-title">
      <h2 id="plan-title">Transfer plan</h2>
      <${ProblemNote} error=${state.error} />
      <div class="steady">${state.busy && html`<${Progress} task=${{ state: "running" }} what="Planning" />`}</div>
      ${state.plan ? html`<${Plan} plan=${state.plan} />` : !state.error && !state.busy && html`<${Empty} title="Nothing is planned yet"><p>Give a network and a batch, or use the example. The plan lists when and over which host each update is sent, and which updates are dropped and why.</p><//>`}
    </section>
  </div>`;
}

// One lane for each link in use; transfers that share a link are put on lanes of their own.
function planBands(plan) {
  const number = new Map(plan.order.map((id, at) => [id, at]));
  const links = new Map();
  for (const transfer of plan.transfers) {
    for (const name of [`${transfer.from} up`, `${transfer.to} down`]) links.set(name, [...(links.get(name) || []), transfer]);
  }
  const lanes = [];
  for (const [name, transfers] of [...links].sort(([a], [b]) => (a < b ? -1 : 1))) {
    const rows = [];
    for (const transfer of [...transfers].sort((a, b) => a.start_s - b.start_s || a.id - b.id)) {
      const row = rows.find((each) => each[each.length - 1].end_s <= transfer.start_s);
      if (row) row.push(transfer);
      else rows.push([transfer]);
    }
    rows.forEach((row, at) => lanes.push({
      label: at ? `${name} (${at + 1})` : name, starts: Float64Array.from(row, (t) => t.start_s), ends: Float64Array.from(row, (t) => t.end_s),
      kinds: Uint8Array.from(row, (t) => groupKind(number.get(t.updates[0]) ?? 0)), text: (item) => row[item].updates.join(" + "),
      describe: (item) => [row[item].updates.join(" + "), `${row[item].from} to ${row[item].to}, ${bytes(row[item].size_bytes)}`, `${seconds(row[item].start_s)} to ${seconds(row[item].end_s)}`],
    }));
  }
  const { predicted } = plan;
  return [{ title: `Links, to the last commit at ${seconds(predicted.last_commit_s)}`, lanes, marks: plan.commits.map(({ at_s: at }) => ({ at, name: "commit" })) }];
}

function Plan({ plan }) {
  const bands = useMemo(() => planBands(plan), [plan]);
  const end = Math.max(plan.predicted.last_commit_s, ...plan.transfers.map(({ end_s: at }) => at), 1e-9) * 1.01;
  return html`
    <dl class="numbers">
      <div class="chief"><dt>Mean commit</dt><dd>${seconds(plan.predicted.mean_commit_s)}</dd></div>
      <div><dt>No plan is faster than</dt><dd>${seconds(plan.predicted.lower_bound_s)}</dd></div>
      <div><dt>Gap</dt><dd>${percent(plan.predicted.gap)}</dd></div>
      <div><dt>Last commit</dt><dd>${seconds(plan.predicted.last_commit_s)}</dd></div>
      <div><dt>Dropped</dt><dd>${plan.dropped.length}</dd></div>
    </dl>
    <${Gantt} label="Transfers on links" bands=${bands} end=${end} />
    <ul class="legend"><li><i class="k6"></i><i class="k7"></i><i class="k8"></i>updates</li><li><i class="line commit"></i>a commit</li></ul>
    ${plan.dropped.length > 0 && html`<h3>Dropped</h3><${Table} caption="Dropped updates" first="id" rows=${plan.dropped} columns=${[
      { name: "id", title: "Update", value: ({ id }) => id }, { name: "reason", title: "Why", value: ({ reason }) => reason },
      { name: "witness", title: "Because of", value: ({ witness }) => witness.join(", ") || "–" }]} />`}
    <h3>Commits</h3>
    <${Table} caption="Commits" first="at" rows=${plan.commits} columns=${[
      { name: "at", title: "At", value: (row) => row.at_s, show: (row) => seconds(row.at_s), numeric: true },
      { name: "version", title: "Version", value: (row) => row.version, numeric: true },
      { name: "updates", title: "Updates", value: (row) => row.updates.join(" + "), show: (row) => html`<span class="name">${row.updates.join(" + ")}</span>` },
      { name: "weights", title: "Weights", value: (row) => row.weights.join(", ") }]} />
    <div class="row"><button type="button" onClick=${() => save("transfer-plan.json", JSON.stringify(plan, null, 2))}>Plan (JSON)</button></div>`;
}
