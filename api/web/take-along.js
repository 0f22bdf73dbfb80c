// What leaves the page: files, and the code to paste into a training job.
import { html, useState } from "./elements.js";
import { segmentRows } from "./groups.js";
import { useLoaded } from "./loading.js";
import { percent, seconds } from "./numbers.js";
import { Copyable, Field, ProblemNote, Progress, csv, save } from "./parts.js";
import { openInPerfetto } from "./perfetto.js";
import { ask, postTask } from "./service.js";

const MIB = 2 ** 20;
// Ways into a job: by PACE, or by what the framework's own sums can be told.
const WAYS = {
  torch: "PACE in PyTorch",
  ddp: "PACE under DistributedDataParallel",
  horovod: "PACE in Horovod",
  "ddp-buckets": "PyTorch DDP alone, with the best buckets",
  "horovod-groups": "Horovod alone, with the best groups",
};
const FRAMEWORKS = { "ddp-buckets": "ddp", "horovod-groups": "horovod" };

function waysOf(schedule) {
  if (schedule.exchange === "servers") return ["torch"];
  // The others send whole all-reduces.
  return schedule.exchange === "sharded" ? ["torch", "horovod", "ddp-buckets", "horovod-groups"] : Object.keys(WAYS);
}

function paceCode(way, schedule, job) {
  const plan = `plan=Plan(service=${JSON.stringify(location.origin)}, job=${JSON.stringify(job || "NAME")})`;
  if (way === "ddp") {
    return `from pace.runtime.ddp import Plan, attach\n\nmodel = DistributedDataParallel(model)\nhandle = attach(model, optimizer, ${plan})`;
  }
  const communication = { sharded: 'AllReduce(sharding="on")', servers: "ParameterServers()" }[schedule.exchange];
  const names = [...(schedule.exchange === "sharded" ? ["AllReduce"] : []), "DistributedOptimizer", "Plan"].join(", ");
  const pack = schedule.exchange === "servers" ? "from pace_servers.runtime import ParameterServers\n" : "";
  const more = communication ? `, communication=${communication}` : "";
  return `from pace.runtime.${way} import ${names}\n${pack}\noptimizer = DistributedOptimizer(optimizer, model${way === "horovod" ? "=model" : ""}, ${plan}${more})`;
}

// A bucket is closed as soon as it reaches its cap, in the order in which gradients become ready.
const bucketCaps = (schedule) => schedule.groups.filter(({ size_bytes: size }) => size).map(({ size_bytes: size }) => size / MIB);

const FRAMEWORK_CODE = {
  "ddp-buckets": (schedule) => `from torch.nn.parallel import DistributedDataParallel\n\nmodel = DistributedDataParallel(model, bucket_cap_mb_list=[${bucketCaps(schedule).join(", ")}])`,
  "horovod-groups": (schedule) => `import horovod.torch as hvd  # with HOROVOD_DISABLE_GROUP_FUSION=1\n\nnames = ${JSON.stringify(schedule.groups.map(({ tensors }) => tensors))}
parameters = dict(model.named_parameters())
groups = [[parameters[name] for name in group] for group in names]
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), groups=groups)`,
};
const FRAMEWORK_FILES = {
  "ddp-buckets": ["Buckets (JSON)", "buckets", (schedule) => ({ bucket_cap_mb_list: bucketCaps(schedule) })],
  "horovod-groups": ["Groups (JSON)", "groups", (schedule) => ({ groups: schedule.groups.map(({ tensors }) => tensors) })],
};

export function TakeAlong({ resource, profileId, ddp, name }) {
  const [error, setError] = useState(null);
  const { schedule } = resource;
  const attempt = (work) => async () => {
    setError(null);
    try {
      await work();
    } catch (failure) {
      setError(failure);
    }
  };
  const trace = async () => (await ask(`v1/schedules/${resource.id}/timeline`)).blob();
  const table = () => csv(["segment", "group", "priority", "start_s", "end_s", "size_bytes"],
    segmentRows(schedule).map(({ number, group, priority, start, end, size }) => [number, group, priority, start, end, size]));
  return html`<section class="card" aria-labelledby="take-title">
    <h2 id="take-title">Download and use</h2>
    <div class="row">
      <button type="button" onClick=${attempt(() => save(`${name}.schedule.json`, JSON.stringify(schedule, null, 2)))}>Schedule (JSON)</button>
      <button type="button" onClick=${attempt(() => save(`${name}.csv`, table(), "text/csv"))}>Segments (CSV)</button>
      <button type="button" onClick=${attempt(async () => save(`${name}.trace.json`, await trace()))}>Chrome trace</button>
      <button type="button" onClick=${attempt(() => openInPerfetto(trace, name))}>Open in Perfetto ↗</button>
    </div>
    <${ProblemNote} error=${error} />
    <${Code} resource=${resource} profileId=${profileId} ddp=${ddp} name=${name} />
  </section>`;
}

function Code({ resource, profileId, ddp, name }) {
  const [way, setWay] = useState("torch");
  const { schedule, job } = resource;
  const framework = FRAMEWORKS[way];
  const loaded = useLoaded(async (signal, progress) => (
    framework ? (await postTask("v1/schedules", { profile_id: profileId, options: { framework } }, { signal, progress })).schedule : null), [profileId, framework]);
  const settled = framework && loaded.value?.framework === framework ? loaded.value : null;
  const text = framework ? settled && FRAMEWORK_CODE[way](settled) : paceCode(way, schedule, job);
  const [label, part, content] = FRAMEWORK_FILES[way] || [];
  return html`<${Field} id="way" label="In the training job"><select id="way" value=${way} onChange=${(event) => setWay(event.target.value)}>
      ${waysOf(schedule).map((each) => html`<option value=${each}>${WAYS[each]}</option>`)}</select><//>
    <${ProblemNote} error=${loaded.error} retry=${loaded.again} />
    ${framework && loaded.busy && html`<${Progress} task=${loaded.task || { state: "running" }} what="Solving" />`}
    ${settled && html`<${Gain} predicted=${settled.predicted} ours=${schedule.predicted} ddp=${ddp} />`}
    ${text && html`<${Copyable} key=${way} text=${text} label="Code for the training job" />`}
    ${settled && html`<div class="row"><button type="button" onClick=${() => save(`${name}.${part}.json`, JSON.stringify(content(settled), null, 2))}>${label}</button></div>`}
    ${!framework && schedule.exchange === "sharded" && html`<p>With this sharded schedule, each worker updates its shard of the parameters, and keeps only that shard's optimizer state. To clip by the global norm, pass${" "}
      <code>max_grad_norm</code> or call <code>optimizer.clip_grad_norm_</code>.</p>`}
    ${way === "ddp-buckets" && html`<p class="faint">For a PyTorch whose DistributedDataParallel takes <code>bucket_cap_mb_list</code>. Sizes for Megatron-Core, DeepSpeed and XLA:${" "}
      <code>pace optimize --for ddp</code>.</p>`}`;
}

function Gain({ predicted, ours, ddp }) {
  const [reference, name] = ddp === undefined ? [ours.iteration_s, "PACE"] : [ddp, "PyTorch DDP's default buckets"];
  const change = predicted.iteration_s / reference - 1;
  return html`<p role="status">Predicted iteration without PACE: ${seconds(predicted.iteration_s)}, which is ${percent(change, true)} compared with ${name}.${" "}
    ${ddp !== undefined && change >= 0 && "DDP's default buckets are as good."}</p>`;
}
