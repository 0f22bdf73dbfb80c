// Reads a timeline that a training job wrote (`write_timeline`) as a window: what was sent, and when, as measured.
import { Problem } from "./service.js";

const MICROSECONDS = 1e-6;

function refuse(detail) {
  throw new Problem({ title: "Not a timeline of PACE", detail }, 422);
}

function eventsOf(text, name) {
  try {
    const { traceEvents: events } = JSON.parse(text);
    if (Array.isArray(events)) return events.filter((event) => event && typeof event === "object");
  } catch {
    // said below
  }
  return refuse(`${name}: this is no Chrome trace. Drop the file that optimizer.write_timeline("timeline.json") wrote.`);
}

export async function readTimeline(file) {
  const zipped = file.name.endsWith(".gz");
  const text = await (zipped ? new Response(file.stream().pipeThrough(new DecompressionStream("gzip"))) : file).text().catch(() => refuse(`${file.name}: this is not compressed by gzip.`));
  const events = eventsOf(text, file.name);
  const title = events.find(({ name }) => name === "process_name")?.args?.name;
  const isTime = (value) => typeof value === "number" && Number.isFinite(value);
  const slices = events.filter(({ ph, args, ts, dur }) => ph === "X" && Array.isArray(args?.gradients) && Number.isInteger(args.group) && isTime(ts) && isTime(dur) && dur >= 0);
  if (!slices.length) refuse(`${file.name}: it has no transfers of gradients. Drop the file that optimizer.write_timeline("timeline.json") wrote after a step.`);
  const rows = [...new Set(slices.map(({ tid }) => tid))].sort((a, b) => a - b);
  const names = new Map(events.filter(({ name }) => name === "thread_name").map(({ tid, args }) => [tid, args?.name]));
  const numbers = new Map();
  const groups = [];
  for (const { name, args } of slices) {
    if (!numbers.has(args.group)) {
      numbers.set(args.group, groups.length);
      groups.push({ name: String(name), gradients: args.gradients.map(String), size_bytes: 0, critical: false });
    }
    groups[numbers.get(args.group)].size_bytes += Number(args.size_bytes) || 0;
  }
  return {
    title: typeof title === "string" ? title : file.name,
    measured: !String(title).startsWith("predicted"),
    row: {
      name: "measured", lanes: [], op_lanes: [], op_starts_s: [], op_ends_s: [],
      links: rows.map((row) => names.get(row) || "network"), groups,
      transfer_links: slices.map(({ tid }) => rows.indexOf(tid)),
      transfer_groups: slices.map(({ args }) => numbers.get(args.group)),
      transfer_bytes: slices.map(({ args }) => Number(args.size_bytes) || 0),
      transfer_starts_s: slices.map(({ ts }) => ts * MICROSECONDS),
      transfer_ends_s: slices.map(({ ts, dur }) => (ts + dur) * MICROSECONDS),
    },
  };
}

// The same row with all times later: a job counts from its first submission, a prediction from the window's start.
export function shifted(row, by) {
  return { ...row, transfer_starts_s: row.transfer_starts_s.map((at) => at + by), transfer_ends_s: row.transfer_ends_s.map((at) => at + by) };
}
