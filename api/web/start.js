// Where one begins: a file, an example, or what is stored already.
import { html, useState } from "./elements.js";
import { goTo, linkTo } from "./address.js";
import { Drift } from "./job.js";
import { useLoaded, useSettled } from "./loading.js";
import { count, counted, milliseconds, moment } from "./numbers.js";
import { usePages } from "./pages.js";
import { DropFile, Empty, Entry, Field, ProblemNote, Table, Waiting, beginning, readJson } from "./parts.js";
import { getJson, importFiles, postTask } from "./service.js";

const GRAPH = "fsdp.json";
const EXAMPLES = [
  { file: "resnet50.json", name: "ResNet-50", about: "157 gradients on 8 workers" },
  { file: "vgg16.json", name: "VGG-16", about: "32 gradients, most bytes in two of them" },
  { file: "transformer.json", name: "Transformer", about: "164 gradients, 1,018 operators" },
  { file: "seq2seq.json", name: "Seq2Seq", about: "32 gradients, 296 operators" },
  { file: GRAPH, name: "Sharded Transformer", about: "8 blocks under FSDP, 48 collectives" },
];
const FORMATS = [
  ["auto", "Recognized from the file"], ["profile", "Profile (JSON)"], ["kineto", "Kineto trace (PyTorch profiler)"],
  ["layers", "Layer table (CSV)"], ["pipedream", "Layer table (PipeDream)"], ["chakra", "Chakra trace"],
  ["horovod-timeline", "Horovod timeline"],
];

// What can be dropped, and where one gets it.
const KINDS = [
  ["PyTorch trace", html`What <code>torch.profiler</code> exports (Kineto). Drop the files of all ranks together.`],
  ["PACE profile", html`What <code>pace import</code> or a job that profiles itself writes (JSON).`],
  ["Graph of FSDP", html`Each graph that <code>CollectivePlanner</code> planned (<code>graph.to_json()</code>), or what <code>pace import node-list</code> writes.`],
  ["Chakra trace", "An execution trace of MLCommons Chakra."],
  ["Layer table", html`CSV with <code>name, forward_ms, backward_ms, parameter_bytes</code>, or PipeDream's.`],
  ["Horovod timeline", html`What <code>HOROVOD_TIMELINE</code> writes.`],
];

// The graph of sharded training that a file holds, or null: all else is read by the service.
async function graphIn(file) {
  if (!/\.json(\.gz)?$/i.test(file.name) || !/"exchange"\s*:\s*"graph"/.test(await beginning(file))) return null;
  const document = await readJson(file);
  return document.nodes ? document : null;
}

export function Start() {
  const [values, setValues] = useState({ format: "auto", workers: "", bandwidth_gbps: "", latency_s: "" });
  const [state, setState] = useState({});
  const set = (name) => (event) => setValues({ ...values, [name]: event.target.value });
  const take = async (files, given) => {
    setState({ busy: files.length > 1 ? `${files.length} files` : files[0].name });
    try {
      const graph = files.length === 1 && given.format === "auto" ? await graphIn(files[0]) : null;
      if (graph) {
        setState({ busy: `and planning ${files[0].name}` });
        goTo("result", { graph: (await postTask("v1/graph-schedules", { graph })).id });
        return;
      }
      const made = await importFiles(files, given);
      sessionStorage.setItem(`pace.warnings.${made.id}`, JSON.stringify(made.warnings));
      goTo("result", { profile: made.id });
    } catch (error) {
      setState({ error });
    }
  };
  const open = async ({ file }) => {
    setState({ busy: file });
    try {
      const content = await (await fetch(`web/examples/${file}`)).blob();
      await take([new File([content], file)], { format: file === GRAPH ? "auto" : "profile" });
    } catch (error) {
      setState({ error });
    }
  };
  return html`<section class="card intro" aria-labelledby="about-title">
      <h2 id="about-title">PACE schedules the communication of data-parallel training</h2>
      <p>It decides which gradients are sent together, in which order, and when, so that the network works while the devices compute. Drop a recording of one training step
      to see how long an iteration takes with PyTorch DDP and with PACE, and why no schedule is faster than its bound.</p>
    </section>
    <div class="columns">
    <section class="card" aria-labelledby="file-title">
      <h2 id="file-title">From a file</h2>
      <${DropFile} id="import-file" label="Drop a file here, or choose one" busy=${Boolean(state.busy)} several=${true}
        hint="Compressed files (.gz, .zst, .zip) and archives are read, too" onFile=${(files) => take(files, values)} />
      <dl class="kinds">${KINDS.map(([kind, about]) => html`<div><dt>${kind}</dt><dd>${about}</dd></div>`)}</dl>
      <details>
        <summary>Add what the file does not contain</summary>
        <div class="fields">
          <${Field} id="import-format" label="Format"><select id="import-format" value=${values.format} onChange=${set("format")}>
            ${FORMATS.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select><//>
          <${Field} id="import-workers" label="Workers"><input id="import-workers" type="number" min="1" inputmode="numeric" value=${values.workers} onInput=${set("workers")} /><//>
          <${Field} id="import-bandwidth" label="Bandwidth of a ring, Gbit/s"><input id="import-bandwidth" type="number" min="0" step="any" value=${values.bandwidth_gbps} onInput=${set("bandwidth_gbps")} /><//>
          <${Field} id="import-latency" label="Its latency, s"><input id="import-latency" type="number" min="0" step="any" value=${values.latency_s} onInput=${set("latency_s")} /><//>
        </div>
      </details>
      ${state.busy && html`<p role="status" class="busy">Reading ${state.busy}…</p>`}
      <${ProblemNote} error=${state.error} />
    </section>
    <section class="card" aria-labelledby="example-title">
      <h2 id="example-title">An example</h2>
      <ul class="choices">${EXAMPLES.map((example) => html`<li><button type="button" class="choice" disabled=${Boolean(state.busy)} onClick=${() => open(example)}>
        <strong>${example.name}</strong><span class="faint">${example.about}</span></button></li>`)}</ul>
      <p class="faint">Computed from layer shapes, not measured.</p>
    </section>
    <${RecentJobs} />
    <${StoredGraphs} />
    <${Stored} />
  </div>`;
}

function RecentJobs() {
  const { value, error, again } = useLoaded((signal) => getJson("v1/jobs?limit=6", signal), []);
  if (!error && !value?.items.length) return null;
  return html`<section class="card whole" aria-labelledby="recent-title">
    <div class="row between"><h2 id="recent-title">A job</h2><a href=${linkTo("jobs")}>All jobs</a></div>
    <${ProblemNote} error=${error} retry=${again} />
    <ul class="choices wide">${(value?.items || []).map((row) => html`<li><a class="choice button" href=${linkTo("jobs", { job: row.job })}>
      <strong class="name">${row.job}</strong><span class="faint">requested ${moment(row.asked_at)}, ${counted(row.num_schedules, "schedule")}</span>
      ${row.measured_iteration_s && html`<span>measured ${milliseconds(row.measured_iteration_s)}, <${Drift} row=${row} /> against predicted</span>`}</a></li>`)}</ul>
  </section>`;
}

function StoredGraphs() {
  const { items, pager } = usePages("v1/graph-schedules", { limit: 10 }, "graphs");
  if (!items.length && !pager) return null;
  return html`<section class="card whole" aria-labelledby="graphs-title">
    <h2 id="graphs-title">Planned graphs</h2>
    <${Table} caption="Planned graphs" rows=${items} rowKey=${({ id }) => id} columns=${GRAPH_COLUMNS} onOrder=${() => {}} />
    ${pager}
  </section>`;
}

const GRAPH_COLUMNS = [
  { name: "name", title: "Name", show: ({ id, name }) => html`<a class="name" href=${linkTo("result", { graph: id })}>${name}</a>` },
  { name: "when", moment: true, title: "Planned", show: (row) => moment(row.created_at) },
  { name: "what-if", title: "", show: ({ id, name }) => html`<a aria-label=${`What if: ${name}`} href=${linkTo("what-if", { graph: id })}>What if…</a>` },
];

function Stored() {
  const [contains, setContains] = useState("");
  const asked = useSettled(contains);
  const { items, value, error, again, pager } = usePages("v1/profiles", { limit: 10, contains: asked }, "profiles");
  return html`<section class="card whole" aria-labelledby="stored-title">
    <div class="row between"><h2 id="stored-title">Stored profiles</h2>
      <${Field} id="profile-contains" label="Name contains"><${Entry} id="profile-contains" type="search" value=${contains} onInput=${(event) => setContains(event.target.value)} /><//></div>
    <${ProblemNote} error=${error} retry=${again} />
    ${!value && !error && html`<${Waiting} what="profiles" rows=${5} />`}
    ${value && !items.length && (asked ? html`<${Empty} title="No profile has this name"><p><button type="button" onClick=${() => setContains("")}>Show all profiles</button></p><//>`
      : html`<${Empty} title="Nothing is stored yet">
      <p>Drop a file above, open an example, or let a training job send its own profile: <code>PACE_URL</code> and <code>PACE_JOB</code> are all it needs.</p><//>`)}
    ${items.length > 0 && html`<${Table} caption="Stored profiles" rows=${items} rowKey=${({ id }) => id} columns=${COLUMNS} onOrder=${() => {}} />`}
    ${pager}
  </section>`;
}

const COLUMNS = [
  { name: "name", title: "Name", show: ({ id, name }) => html`<a class="name" href=${linkTo("result", { profile: id })}>${name}</a>` },
  { name: "gradients", title: "Gradients", show: (row) => count(row.num_gradients), numeric: true },
  { name: "ops", title: "Operators", show: (row) => count(row.num_ops), numeric: true },
  { name: "when", moment: true, title: "Stored", show: (row) => moment(row.created_at) },
  { name: "what-if", title: "", show: ({ id, name }) => html`<a aria-label=${`What if: ${name}`} href=${linkTo("what-if", { profile: id })}>What if…</a>` },
];
