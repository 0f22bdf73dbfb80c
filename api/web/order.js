// Whether a job can hang: ranks as lanes, and who waits in which collective for whom.
import { html, useMemo, useState } from "./elements.js";
import { adjust, goTo, useTitle } from "./address.js";
import { Gantt } from "./gantt.js";
import { KINDS, groupKind } from "./gantt-chart.js";
import { useLoaded } from "./loading.js";
import { bytes, count } from "./numbers.js";
import { DropFile, Empty, Entry, Field, ProblemNote, Progress, Waiting, readJson, save } from "./parts.js";
import { getJson, postTask, resourcePath } from "./service.js";

const MOST_LANES = 40;
const NEAR = 40;

export function Order({ values }) {
  const [text, setText] = useState("");
  const [state, setState] = useState({});
  const check = async (program, given = values) => {
    setState({ task: { state: "running" } });
    try {
      const slots = Number(given.slots);
      const body = { program, streams: given.streams || "side-by-side", launch_slots: slots > 0 ? slots : null };
      const made = await postTask("v1/order-checks", body, { progress: (task) => setState({ task }) });
      setState({});
      goTo("order", { ...given, check: made.id });
    } catch (error) {
      setState({ error });
    }
  };
  const attempt = (load) => async (from) => {
    try {
      await check(await load(from));
    } catch (error) {
      setState({ error });
    }
  };
  const pasted = () => {
    try {
      return JSON.parse(text);
    } catch (error) {
      throw Object.assign(new Error(`The pasted text is not JSON: ${error.message}`), { title: "Invalid job program" });
    }
  };
  // Other streams or slots: the stored program is asked about again.
  const change = async (name, value) => {
    const given = { ...values, [name]: value };
    adjust({ [name]: value });
    if (!values.check) return;
    try {
      await check(await getJson(`${resourcePath("order-check", values.check)}/program`), given);
    } catch (error) {
      setState({ error });
    }
  };
  const busy = Boolean(state.task);
  return html`<div class="side-by-side">
    <section class="card controls" aria-labelledby="order-title">
      <h2 id="order-title">Can my job hang?</h2>
      <${DropFile} id="program-file" label="Drop a job program" hint="JSON: what every rank enqueues" busy=${busy} onFile=${attempt(readJson)} />
      <button type="button" disabled=${busy} onClick=${attempt(async () => (await fetch("web/examples/order.json")).json())}>Use the example</button>
      <${Field} id="program-text" label="Or paste one"><textarea id="program-text" rows="6" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea><//>
      <button type="button" class="chief" disabled=${busy || !text.trim()} onClick=${attempt(pasted)}>Check</button>
      <${Field} id="streams" label="Streams of a device run"><select id="streams" value=${values.streams || "side-by-side"} disabled=${busy} onChange=${(event) => change("streams", event.target.value)}>
        <option value="side-by-side">side by side</option><option value="launch-order">in the order of launches</option></select><//>
      <${Field} id="slots" label="Launch slots of a stream"><${Entry} id="slots" type="number" min="1" placeholder="no limit" value=${values.slots || ""} disabled=${busy} onChange=${(event) => change("slots", event.target.value)} /><//>
      <p class="faint">Traces, flight-recorder dumps and FX graphs: <code>pace check-order FILES --html page.html</code>.</p>
    </section>
    <section class="card" aria-labelledby="order-answer">
      <h2 id="order-answer">Order of collectives</h2>
      <${ProblemNote} error=${state.error} />
      ${busy && html`<${Progress} task=${state.task} what="Checking" />`}
      ${values.check ? html`<${Answer} key=${values.check} id=${values.check} />`
        : !busy && html`<${Empty} title="Nothing is checked yet"><p>Drop a job program, or use the example. The answer is a proof that the job cannot hang, or which rank waits in which collective for whom.</p><//>`}
    </section>
  </div>`;
}

function Answer({ id }) {
  const loaded = useLoaded(async (signal) => {
    const path = resourcePath("order-check", id);
    const [resource, program] = await Promise.all([getJson(path, signal), getJson(`${path}/program`, signal)]);
    return { resource, program };
  }, [id]);
  const { resource, program } = loaded.value || {};
  useTitle(resource?.name, "Order");
  if (!resource) return html`<${ProblemNote} error=${loaded.error} retry=${loaded.again} />${!loaded.error && html`<${Waiting} what="the answer" rows=${6} />`}`;
  const { report } = resource;
  const streams = report.streams === "side-by-side" ? "side by side" : "in the order in which they are enqueued";
  return html`
    <p class=${report.cannot_hang ? "verdict good" : "verdict bad-text"}>${report.name} ${report.cannot_hang ? "cannot hang" : "can hang"}.</p>
    <dl class="numbers"><div><dt>Ranks</dt><dd>${count(report.num_ranks)}</dd></div><div><dt>Different programs</dt><dd>${count(report.num_programs)}</dd></div>
      <div><dt>Operations</dt><dd>${count(report.num_operations)}</dd></div></dl>
    ${report.findings.map((finding, number) => html`<${Finding} key=${number} finding=${finding} program=${program} />`)}
    <h3>What was checked</h3>
    <p>First in, first out in each group and stream. Streams run ${streams}${report.launch_slots == null ? "" : `, with room for ${report.launch_slots} operation${report.launch_slots > 1 ? "s" : ""} on each`}. Not proved:</p>
    <ul class="changes">${report.outside.map((line) => html`<li>${line}</li>`)}</ul>
    <div class="row"><button type="button" onClick=${() => save(`${report.name}-order.json`, JSON.stringify(report, null, 2))}>Report (JSON)</button></div>`;
}

function Finding({ finding, program }) {
  const drawn = useMemo(() => findingBand(finding, program), [finding, program]);
  return html`<h3>${finding.title}</h3>
    ${drawn && html`<${Gantt} label=${finding.title} bands=${drawn.bands} end=${drawn.end} first=${drawn.end} view=${drawn.view} counted=${true} />
      <ul class="legend">${drawn.groups.map((name) => html`<li><i class=${`k${drawn.kindOf(name)}`}></i>${name}</li>`)}<li><i class="k2"></i>waits of threads and streams</li>
        <li><i class="critical"></i>${finding.waits?.length ? "a rank waits here" : "differs, or is missing elsewhere"}</li>${finding.waits?.length && html`<li><i class="arrow-line"></i>waits for</li>`}</ul>
      ${drawn.left > 0 && html`<p class="faint">and ${count(drawn.left)} more lanes, in the text below</p>`}`}
    <pre class="wrapped" tabindex="0" aria-label=${`Details: ${finding.title}`}>${finding.lines.join("\n")}</pre>`;
}

const wordsOf = (operation) => {
  if (operation.op === "wait") return [`wait for ${operation.operation || `group ${operation.group}`}`];
  if (operation.op === "synchronize") return [operation.name || "synchronize", operation.stream ? `with stream ${operation.stream}` : "with the device"];
  if (operation.op === "batch") return ["batch", ...operation.operations.map((each) => `${each.op} ${each.peer}`)];
  const { op, name, group, size_bytes: size, dtype, peer } = operation;
  return [name ? `${op} ${name}` : op, `group ${group}`, ...(peer == null ? [] : [op === "send" ? `to rank ${peer}` : `from rank ${peer}`]), ...(size == null ? [] : [`${bytes(size)}${dtype ? `, ${dtype}` : ""}`])];
};

const groupOf = (operation) => operation.group || operation.operations?.[0]?.group;

// The threads of the ranks of a finding as lanes of operations, in the order in which they are enqueued; arrows go from where a
// rank waits to what another has not started.
function findingBand(finding, program) {
  const waits = finding.waits || [];
  const marked = [...(finding.operations || []), ...waits.flatMap(({ at, missing }) => [at, missing])].filter(Boolean);
  if (!marked.length) return null;
  const ofRank = new Map(program.programs.flatMap(({ ranks, threads }) => ranks.map((rank) => [rank, threads])));
  const groups = program.groups.map(({ name }) => name);
  const kindOf = (name) => groupKind(Math.max(groups.indexOf(name), 0));
  const lanes = [];
  const laneOf = new Map();
  const ranks = [...new Set(finding.ranks)];
  for (const rank of ranks) {
    const threads = ofRank.get(rank) || [];
    for (const thread of threads) {
      if (lanes.length >= MOST_LANES) break;
      const { operations } = thread;
      const held = new Set(waits.filter(({ at }) => at && at.rank === rank && at.thread === thread.name).map(({ at }) => at.number));
      const named = new Set((finding.operations || []).filter((each) => each.rank === rank && each.thread === thread.name).map((each) => each.number));
      laneOf.set(`${rank} ${thread.name}`, lanes.length);
      lanes.push({
        label: threads.length > 1 ? `rank ${rank}, ${thread.name}` : `rank ${rank}`,
        starts: Float64Array.from(operations, (_, at) => at + 0.04), ends: Float64Array.from(operations, (_, at) => at + 0.96),
        kinds: Uint8Array.from(operations, ({ op, ...rest }) => (["wait", "synchronize"].includes(op) ? KINDS.collective : kindOf(groupOf(rest)))),
        critical: Uint8Array.from(operations, (_, at) => Number(held.has(at) || named.has(at))),
        text: (item) => wordsOf(operations[item])[0],
        describe: (item) => [...wordsOf(operations[item]), `operation ${item + 1} of ${operations.length}`, ...(held.has(item) ? ["waits here"] : []), ...(operations[item].stack || []).slice(0, 3)],
      });
    }
  }
  const place = (at) => (at && laneOf.has(`${at.rank} ${at.thread}`) ? [laneOf.get(`${at.rank} ${at.thread}`), at.number] : null);
  const arrows = waits.map(({ at }, number) => ({ from: place(at), to: place(waits[(number + 1) % waits.length].missing) })).filter(({ from, to }) => from && to && from[0] !== to[0]);
  const end = Math.max(1, ...lanes.map(({ starts }) => starts.length));
  // Of long programs the chart begins where it happens.
  const numbers = marked.map(({ number }) => number);
  const [least, most] = [Math.min(...numbers), Math.max(...numbers)];
  const view = end > NEAR ? [Math.max(least - NEAR / 4, 0), Math.min(Math.max(most + NEAR / 4, least + NEAR / 2), end)] : null;
  const shown = new Set(ranks.flatMap((rank) => (ofRank.get(rank) || []).flatMap(({ operations }) => operations.map(groupOf))));
  const all = ranks.reduce((sum, rank) => sum + (ofRank.get(rank) || []).length, 0);
  return { bands: [{ title: "What each rank enqueues, in order", short: "Operations in order", lanes, arrows, marks: [] }], end, view, groups: groups.filter((name) => shown.has(name)), kindOf, left: all - lanes.length };
}
