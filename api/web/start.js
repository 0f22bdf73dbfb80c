// Where one begins: a file, an example, or what is stored already.
import { html, useState } from "./elements.js";
import { goTo, linkTo } from "./address.js";
import { useLoaded } from "./loading.js";
import { count, moment } from "./numbers.js";
import { DropFile, Empty, Field, ProblemNote, Table } from "./parts.js";
import { getJson, importFiles } from "./service.js";

const EXAMPLES = [
  { file: "resnet50.json", name: "ResNet-50", about: "157 gradients on 8 workers" },
  { file: "vgg16.json", name: "VGG-16", about: "32 gradients, most bytes in two of them" },
  { file: "transformer.json", name: "Transformer", about: "164 gradients, 1,018 operators" },
];
const FORMATS = [
  ["auto", "Told from the file"], ["profile", "Profile (JSON)"], ["kineto", "Kineto trace (PyTorch profiler)"],
  ["layers", "Layer table (CSV)"], ["pipedream", "Layer table (PipeDream)"], ["chakra", "Chakra trace"],
  ["horovod-timeline", "Horovod timeline"],
];

export function Start() {
  const [values, setValues] = useState({ format: "auto", workers: "", bandwidth_gbps: "", latency_s: "" });
  const [state, setState] = useState({});
  const set = (name) => (event) => setValues({ ...values, [name]: event.target.value });
  const take = async (files, given) => {
    setState({ busy: files.length > 1 ? `${files.length} files` : files[0].name });
    try {
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
      await take([new File([content], file)], { format: "profile" });
    } catch (error) {
      setState({ error });
    }
  };
  return html`<div class="columns">
    <section class="card" aria-labelledby="file-title">
      <h2 id="file-title">From a file</h2>
      <${DropFile} id="import-file" label="Drop a file here, or choose one" busy=${Boolean(state.busy)} several=${true}
        hint="Profile, Kineto trace (of all ranks: drop the files together), layer table, Chakra trace or Horovod timeline; .gz, .tar and .zip too" onFile=${(files) => take(files, values)} />
      <details>
        <summary>What the file does not contain</summary>
        <div class="fields">
          <${Field} id="import-format" label="Format"><select id="import-format" value=${values.format} onChange=${set("format")}>
            ${FORMATS.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select><//>
          <${Field} id="import-workers" label="Workers"><input id="import-workers" type="number" min="1" inputmode="numeric" value=${values.workers} onInput=${set("workers")} /><//>
          <${Field} id="import-bandwidth" label="Bandwidth of a ring, Gb/s"><input id="import-bandwidth" type="number" min="0" step="any" value=${values.bandwidth_gbps} onInput=${set("bandwidth_gbps")} /><//>
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
    <${Stored} />
  </div>`;
}

function RecentJobs() {
  const { value, error, again } = useLoaded((signal) => getJson("v1/jobs?limit=6", signal), []);
  if (!error && !value?.items.length) return null;
  return html`<section class="card whole" aria-labelledby="recent-title">
    <h2 id="recent-title">A job</h2>
    <${ProblemNote} error=${error} retry=${again} />
    <ul class="choices wide">${(value?.items || []).map(({ job, asked_at: at, num_schedules: schedules }) => html`<li><a class="choice button" href=${linkTo("jobs", { job })}>
      <strong class="name">${job}</strong><span class="faint">asked ${moment(at)}, ${count(schedules)} schedule${schedules > 1 ? "s" : ""}</span></a></li>`)}</ul>
    <p><a href=${linkTo("jobs")}>All jobs</a></p>
  </section>`;
}

function Stored() {
  const { value, error, again } = useLoaded((signal) => getJson("v1/profiles?limit=50", signal), []);
  return html`<section class="card whole" aria-labelledby="stored-title">
    <h2 id="stored-title">Stored profiles</h2>
    <${ProblemNote} error=${error} retry=${again} />
    ${value && !value.items.length && html`<${Empty} title="Nothing is stored yet">
      <p>Drop a profile above, or let a training job send its own: <code>PACE_URL</code> and <code>PACE_JOB</code> are all it needs.</p><//>`}
    ${value?.items.length > 0 && html`<${Table} caption="Stored profiles" rows=${value.items} pageSize=${10} rowKey=${({ id }) => id} columns=${COLUMNS} />`}
  </section>`;
}

const COLUMNS = [
  { name: "name", title: "Name", value: ({ name }) => name, show: ({ id, name }) => html`<a class="name" href=${linkTo("result", { profile: id })}>${name}</a>` },
  { name: "gradients", title: "Gradients", value: (row) => row.num_gradients, show: (row) => count(row.num_gradients), numeric: true },
  { name: "ops", title: "Operators", value: (row) => row.num_ops, show: (row) => count(row.num_ops), numeric: true },
  { name: "when", moment: true, title: "Stored", value: (row) => row.created_at, show: (row) => moment(row.created_at) },
];
