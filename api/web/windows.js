// Bands of the Gantt chart from windows that the service laid out in time.
import { KINDS, groupKind } from "./gantt-chart.js";
import { bytes, gigabytes, percent, seconds } from "./numbers.js";

export const POLICY_NAMES = {
  schedule: "PACE, this schedule", ddp: "PyTorch DDP", "ddp-best": "DDP, best buckets", fifo: "FIFO", horovod: "Horovod",
  bytescheduler: "ByteScheduler", p3: "P3", tao: "TicTac", "mg-wfbp": "MG-WFBP", dear: "DeAR", paper: "PACE, the paper's fusion",
  "as-traced": "As traced", fsdp2: "FSDP2", inductor: "Inductor's pass", "zero-3": "DeepSpeed ZeRO-3", blocks: "Transformer blocks",
  pace: "PACE", "zero-1": "ZeRO-1", "zero-redundancy": "ZeRO", sharded: "PACE, sharded",
};
export const policyName = (name) => POLICY_NAMES[name] || name;

// Colors of gradients, by their groups in the first row that has them: each has one color in all rows.
export function gradientKinds(rows) {
  const kinds = new Map();
  for (const { groups } of rows) {
    groups.forEach(({ gradients }, number) => {
      for (const gradient of gradients) if (!kinds.has(gradient)) kinds.set(gradient, groupKind(number));
    });
  }
  return kinds;
}

export function windowBands(result, certificate) {
  const kinds = gradientKinds(result.rows);
  const ddp = result.rows.find(({ name }) => name === "ddp");
  return result.rows.map((row) => {
    const gain = ddp && row !== ddp && ddp.iteration_s ? `, ${percent(row.iteration_s / ddp.iteration_s - 1, true)} against DDP` : "";
    const short = `${policyName(row.name)}: ${seconds(row.iteration_s)}`;
    return { ...band(result, row, kinds, row.name === "schedule" ? certificate : []), title: `${short}${gain}`, short, marks: [{ at: row.iteration_s, name: "end" }] };
  });
}

// The lanes of one window: ops, transfers, memory where it is known, and the certificate's parts if there are any.
export function band(result, row, kinds, certificate = []) {
  const memory = row.memory ? [memoryLane(row, result.rows)] : [];
  return { lanes: [...opLanes(result, row), ...linkLanes(row, kinds), ...memory, ...(certificate.length ? [certificateLane(certificate)] : [])], marks: [] };
}

function lane(label, order, starts, ends, kindOf, more) {
  return {
    label, starts: Float64Array.from(order, (at) => starts[at]), ends: Float64Array.from(order, (at) => ends[at]),
    kinds: Uint8Array.from(order, kindOf), ...more,
  };
}

const OP_NAMES = { compute: "compute", copy: "copies into and out of buckets" };

function opLanes(result, row) {
  const phases = row.op_phases || result.op_phases;
  const name = (at) => (row.op_phases ? OP_NAMES[phases[at]] : result.op_names[at]);
  return row.lanes.map((label, number) => {
    const order = [];
    for (let at = 0; at < row.op_lanes.length; at += 1) {
      if (row.op_lanes[at] === number && row.op_ends_s[at] > row.op_starts_s[at]) order.push(at);
    }
    order.sort((a, b) => row.op_starts_s[a] - row.op_starts_s[b]);
    return lane(label, order, row.op_starts_s, row.op_ends_s, (at) => KINDS[phases[at]], {
      text: (item) => name(order[item]),
      describe: (item) => [
        name(order[item]),
        `${seconds(row.op_starts_s[order[item]])} to ${seconds(row.op_ends_s[order[item]])}`,
        `takes ${seconds(row.op_ends_s[order[item]] - row.op_starts_s[order[item]])}`,
      ],
    });
  });
}

function linkLanes(row, kinds) {
  const what = row.op_phases ? "collective" : "gradient";
  return row.links.map((label, number) => {
    const order = [];
    for (let at = 0; at < row.transfer_links.length; at += 1) if (row.transfer_links[at] === number) order.push(at);
    order.sort((a, b) => row.transfer_starts_s[a] - row.transfer_starts_s[b]);
    const carried = (item) => row.groups[row.transfer_groups[order[item]]];
    return lane(label, order, row.transfer_starts_s, row.transfer_ends_s, (at) => kinds.get(row.groups[row.transfer_groups[at]].gradients[0]) ?? groupKind(row.transfer_groups[at]), {
      carried,
      critical: Uint8Array.from(order, (at) => Number(row.groups[row.transfer_groups[at]].critical)),
      text: (item) => carried(item).name.replace(/^group /, ""),
      describe: (item) => {
        const { name, gradients, size_bytes: whole, critical } = carried(item);
        const at = order[item];
        return [
          name,
          `${seconds(row.transfer_starts_s[at])} to ${seconds(row.transfer_ends_s[at])}, takes ${seconds(row.transfer_ends_s[at] - row.transfer_starts_s[at])}`,
          row.transfer_bytes[at] === whole ? bytes(whole) : `${bytes(row.transfer_bytes[at])} of ${bytes(whole)}`,
          gradients.length > 1 ? `${gradients.length} ${what}s: ${gradients[0]} …` : gradients[0] === name ? `one ${what}` : gradients[0] || "",
          ...(critical ? ["part of the certificate"] : []),
        ];
      },
    });
  });
}

// Memory in use; all rows have one scale, without most of what is always in use, which would hide the rest.
function memoryLane({ memory, iteration_s: iteration }, rows) {
  const { starts_s: starts, in_use_bytes: values, budget_bytes: limit } = memory;
  const among = (choose, of) => rows.reduce((found, row) => row.memory.in_use_bytes.reduce((one, other) => choose(one, other), found), of);
  const highest = among(Math.max, limit || 0);
  const lowest = among(Math.min, Infinity);
  const room = Math.max(0.3 * (highest - lowest), 0.02 * highest) || 1;
  const least = lowest > 0.5 * highest ? lowest - room : 0;
  const last = Math.max(iteration, starts[starts.length - 1]);
  const peak = values.reduce((one, other) => Math.max(one, other), 0);
  return {
    label: "memory", starts: Float64Array.from(starts), ends: Float64Array.from(starts, (_, at) => starts[at + 1] ?? last), values, least, most: highest + room, limit,
    note: `${gigabytes(peak)} at most${limit == null ? "" : `, budget ${gigabytes(limit)}`}`, floor: `from ${gigabytes(least)}`,
    describe: (item) => [gigabytes(values[item]), `from ${seconds(starts[item])}`, ...(limit == null ? [] : [values[item] > limit ? `${gigabytes(values[item] - limit)} over the budget` : `${gigabytes(limit - values[item])} below the budget`])],
  };
}

// The numbers that add up to the bound, one behind the other.
export function certificateParts(schedule) {
  if (schedule.exchange === "servers") {
    // Every fusion, partition and order, on the link that binds.
    const { link, min_ready_s: ready, total_bytes: size, seconds_per_byte: rate, latency_s: lost, min_tail_s: tail } = schedule.bound;
    return [
      { name: "ready", kind: "ready", value: ready, means: "no gradient of the set is ready earlier" },
      { name: link === "up" ? "push" : "pull", kind: "carried", value: size * rate + lost, means: `a worker's link needs this for the set` },
      { name: "tail", kind: "tail", value: (schedule.bound.round_trip_s ?? 0) + tail, means: "the round trip of the last of them, and the compute that follows" },
    ];
  }
  const [proof] = schedule.proofs;
  const carried = (op) => proof.set.map((number) => schedule.groups[number]).filter((group) => (group.op ?? null) === op)
    .reduce((sum, group) => sum + group.transfer_s, 0);
  const halves = [
    { name: "reduce-scatter", kind: "carried", value: carried("reduce-scatter"), means: "the first half on the network" },
    { name: "norm", kind: "ready", value: proof.norm_s ?? 0, means: "the norm of all gradients" },
    { name: "all-gather", kind: "carried", value: carried("all-gather"), means: "the second half on the network" },
  ];
  return [
    { name: "ready", kind: "ready", value: proof.min_ready_s, means: "no gradient of the set is ready earlier" },
    ...(schedule.exchange === "sharded" ? halves
      : [{ name: "all-reduce", kind: "carried", value: proof.total_s, means: "the network needs this for the set" }]),
    { name: "tail", kind: "tail", value: proof.min_tail_s, means: `at least this ${schedule.exchange === "sharded" ? "" : "compute "}follows the last of them` },
    { name: "stretch", kind: "ready", value: proof.stretch_s ?? 0, means: "time by which the other transfers slow compute down" },
  ].filter(({ name, value }) => !["norm", "stretch"].includes(name) || value > 0);
}

// What the parts of the certificate add up to, and what that proves.
export function certified(schedule) {
  if (schedule.exchange === "servers") return { sum: schedule.bound.bound_s, proves: "No other groups, parts and order end earlier." };
  return { sum: schedule.proofs[0].bound_s, proves: "No preemptive order of these groups ends earlier." };
}

// Below this share of compute, it is not the network that limits a job.
const LITTLE = 0.05;
const CARRIED = { "all-reduce": "all-reduces", "reduce-scatter": "reduce-scatters", "all-gather": "all-gathers", push: "pushes", pull: "pulls" };

// What limits a job, in a sentence: the certificate in words. A number that the chart shows is {text, part}, with the
// number of the certificate's part. What the network adds is told by the bound: the certificate is about these groups.
export function whyParts(schedule) {
  const parts = certificateParts(schedule);
  const compute = schedule.predicted.compute_s;
  const added = schedule.predicted.lower_bound_s - compute;
  if (added <= 1e-9 * compute) return ["Compute limits this job: the network would allow a shorter iteration."];
  if (added < LITTLE * compute) return [`Compute limits this job: the network adds at least ${seconds(added)}.`];
  const at = (name) => parts.findIndex((part) => part.name === name);
  const of = (name) => parts[at(name)]?.value || 0;
  const carried = parts.filter(({ kind }) => kind === "carried");
  const total = carried.reduce((sum, { value }) => sum + value, 0);
  const rest = [["norm", "for the norm of all gradients"], ["tail", schedule.exchange === "sharded" ? "after the last of them" : "of compute"], ["stretch", "by which traffic slows compute down"]]
    .filter(([name]) => of(name) > 0).map(([name, what]) => [{ text: seconds(of(name)), part: at(name) }, ` ${what}`]);
  return [
    "The network limits this job: ", { text: seconds(total), part: parts.indexOf(carried[0]) }, ` of ${carried.map(({ name }) => CARRIED[name]).join(" and ")} must follow the first `,
    { text: seconds(of("ready")), part: at("ready") }, ...rest.flatMap((words, number) => [number === 0 ? ", plus " : number === rest.length - 1 ? " and " : ", ", ...words]), ".",
  ];
}

export const why = (schedule) => whyParts(schedule).map((each) => each.text ?? each).join("");

function certificateLane(parts) {
  const ends = [];
  parts.reduce((sum, { value }) => { ends.push(sum + value); return sum + value; }, 0);
  return {
    label: "certificate", starts: Float64Array.from(parts, ({ value }, at) => ends[at] - value), ends: Float64Array.from(ends),
    kinds: Uint8Array.from(parts, ({ kind }) => KINDS[kind]), text: (item) => `${parts[item].name} ${seconds(parts[item].value)}`,
    describe: (item) => [parts[item].name, seconds(parts[item].value), parts[item].means],
  };
}
