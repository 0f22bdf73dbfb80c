// What changed between windows: numbers side by side, and against the first in words and gradient by gradient.
import { bytes, compact, count, counted, milliseconds, percent, seconds } from "./numbers.js";

const EXCHANGES = { allreduce: "whole all-reduces", sharded: "sharded all-reduces", servers: "parameter servers" };
// Changes of times below this share are rounding or noise.
const SAME = 0.01;

// Whether a gradient arrives at another time.
const moves = (a, b) => Math.abs(b.end - a.end) > SAME * Math.max(a.end, b.end);

const sum = (values) => values.reduce((total, value) => total + value, 0);

const known = new WeakMap();

// When each gradient is first sent and last received in a window, and with what.
export function gradientTimes(row) {
  if (!known.has(row)) known.set(row, timesIn(row));
  return known.get(row);
}

function timesIn(row) {
  const times = new Map();
  const members = row.groups.map(({ gradients }) => [...gradients].sort().join("\n"));
  row.transfer_groups.forEach((number, at) => {
    const group = row.groups[number];
    for (const name of group.gradients) {
      const start = row.transfer_starts_s[at];
      const end = row.transfer_ends_s[at];
      const seen = times.get(name);
      if (!seen) times.set(name, { start, end, group: group.name, together: group.gradients.length, members: members[number] });
      else {
        if (start < seen.start) Object.assign(seen, { start, group: group.name, together: group.gradients.length, members: members[number] });
        seen.end = Math.max(seen.end, end);
      }
    }
  });
  return times;
}

// One row for each gradient of either side.
export function gradientRows(one, other) {
  const [first, second] = [one, other].map(({ row }) => gradientTimes(row));
  const sizes = [one, other].map(({ profile }) => new Map((profile?.gradients || []).map(({ name, size_bytes: size }) => [name, size])));
  return [...new Set([...first.keys(), ...second.keys()])].map((name) => {
    const [a, b] = [first.get(name), second.get(name)];
    const size = sizes.map((known) => known.get(name) ?? null);
    return {
      name, a, b, size, later: a && b ? b.end - a.end : null,
      differs: !a || !b || (size[0] != null && size[1] != null && size[0] !== size[1]) || a.members !== b.members || moves(a, b),
    };
  });
}

const timesOf = ({ ops }) => new Map(ops.map(({ name, duration_s: duration }) => [name, duration]));

// Operators of both profiles whose duration changed, the largest change first; and how many only one has.
export function operatorChanges(one, other) {
  const [before, after] = [timesOf(one), timesOf(other)];
  const changed = [...after].filter(([name, duration]) => before.has(name) && Math.abs(duration - before.get(name)) > SAME * Math.max(duration, before.get(name)))
    .map(([name, duration]) => ({ name, before: before.get(name), after: duration, change: duration - before.get(name) }))
    .sort((a, b) => Math.abs(b.change) - Math.abs(a.change));
  return {
    changed, added: [...after.keys()].filter((name) => !before.has(name)), removed: [...before.keys()].filter((name) => !after.has(name)),
  };
}

function costOf({ allreduce }) {
  const { kind, bandwidth_bytes_per_s: rate, latency_s: latency, seconds_per_byte: slope } = allreduce;
  const parts = [kind];
  if (rate) parts.push(`${compact(rate * 8e-9)} Gbit/s`);
  if (slope) parts.push(`${compact(8e-9 / slope)} Gbit/s`);
  if (latency != null) parts.push(`latency ${seconds(latency)}`);
  return parts.join(", ");
}

const named = (names, what) => `${count(names.length)} ${what}: ${names.slice(0, 3).join(", ")}${names.length > 3 ? " and others" : ""}`;

// Sentences about two schedules and their profiles, what matters first. Each side: {schedule, profile, row, letter}.
export function changesInWords(one, other) {
  const { letter } = other;
  const said = [];
  const tell = (what, a, b) => { if (a !== b) said.push(`${what}: ${a} in A, ${b} in ${letter}.`); };
  const [a, b] = [one.schedule, other.schedule];
  const [from, to] = [a.predicted, b.predicted];
  if (one.profile && other.profile && a.profile_sha256 !== b.profile_sha256) {
    const [before, after] = [one.profile, other.profile];
    if (Math.abs(to.compute_s - from.compute_s) > SAME * from.compute_s) {
      said.push(`Compute takes ${seconds(Math.abs(to.compute_s - from.compute_s))} ${to.compute_s > from.compute_s ? "longer" : "less"} in ${letter} (${percent(to.compute_s / from.compute_s - 1, true)}).`);
    }
    tell("Workers", count(before.workers), count(after.workers));
    if (JSON.stringify(before.allreduce) !== JSON.stringify(after.allreduce)) {
      if (costOf(before) === costOf(after)) said.push("The measured cost of an all-reduce differs.");
      else tell("Network", costOf(before), costOf(after));
    }
    tell("Updates", before.update || "per-gradient", after.update || "per-gradient");
    const sizes = [before, after].map(({ gradients }) => new Map(gradients.map(({ name, size_bytes: size }) => [name, size])));
    const added = [...sizes[1].keys()].filter((name) => !sizes[0].has(name));
    const removed = [...sizes[0].keys()].filter((name) => !sizes[1].has(name));
    const resized = [...sizes[1]].filter(([name, size]) => sizes[0].has(name) && sizes[0].get(name) !== size).map(([name]) => name);
    if (added.length) said.push(`Only ${letter} has ${named(added, `gradient${added.length > 1 ? "s" : ""}`)}.`);
    if (removed.length) said.push(`Only A has ${named(removed, `gradient${removed.length > 1 ? "s" : ""}`)}.`);
    if (resized.length) said.push(`Different size in ${letter}: ${named(resized, `gradient${resized.length > 1 ? "s" : ""}`)}.`);
    const { changed } = operatorChanges(before, after);
    if (changed.length) said.push(`${count(changed.length)} operator${changed.length > 1 ? "s take" : " takes"} a different time; the largest change: ${changed[0].name}, ${seconds(changed[0].before)} in A, ${seconds(changed[0].after)} in ${letter}.`);
    if (!said.length) said.push("The profiles differ only in names, or in properties that do not change times.");
  } else if (a.profile_sha256 === b.profile_sha256) {
    said.push("Both are for the same profile.");
  }
  tell("Exchange", EXCHANGES[a.exchange] || a.exchange, EXCHANGES[b.exchange] || b.exchange);
  tell("For the framework", a.framework || "PACE", b.framework || "PACE");
  const [first, second] = [one, other].map(({ row }) => gradientTimes(row));
  const both = [...first.keys()].filter((name) => second.has(name));
  if (!both.length) said.push("No gradient is in both: these are schedules of different models.");
  const regrouped = both.filter((name) => first.get(name).members !== second.get(name).members);
  if (regrouped.length) said.push(`${count(regrouped.length)} of ${count(both.length)} gradients are sent in a different group.`);
  const moved = both.filter((name) => moves(first.get(name), second.get(name)));
  const sooner = moved.filter((name) => second.get(name).end < first.get(name).end).length;
  if (moved.length) said.push(`${counted(sooner, "gradient")} arrive${sooner === 1 ? "s" : ""} earlier in ${letter}, ${count(moved.length - sooner)} later.`);
  else if (both.length && !regrouped.length) said.push("Every gradient arrives at the same time.");
  return said;
}

const busy = (row) => sum(row.transfer_ends_s.map((end, at) => end - row.transfer_starts_s[at]));
const sent = (row) => sum(row.transfer_bytes);
const last = (row) => row.transfer_ends_s.reduce((one, other) => Math.max(one, other), 0);
const first = (row) => row.transfer_starts_s.reduce((one, other) => Math.min(one, other), Infinity);

// Numbers of all sides: {name, values, show}. A measured side has no schedule, but may have a reported time.
export function numberRows(sides) {
  const rows = [];
  const add = (name, of, show = milliseconds) => {
    const values = sides.map((side) => of(side) ?? null);
    if (values.some((value) => value !== null)) rows.push({ name, values, show });
  };
  add("Iteration, predicted", ({ schedule }) => schedule?.predicted.iteration_s);
  add("Iteration, measured last", ({ report }) => report?.measured_iteration_s);
  add("No schedule is faster than", ({ schedule }) => schedule?.predicted.lower_bound_s);
  add("Compute alone", ({ schedule }) => schedule?.predicted.compute_s);
  add("Not hidden by compute, predicted", ({ schedule }) => schedule && Math.max(schedule.predicted.iteration_s - schedule.predicted.compute_s, 0));
  add("First transfer to last", ({ row }) => (row.transfer_ends_s.length ? last(row) - first(row) : null));
  add("Transfers, sum of their times", ({ row }) => busy(row));
  add("Bytes in transfers", ({ row }) => sent(row), bytes);
  add("Groups", ({ row }) => row.groups.filter(({ gradients }) => gradients.length).length, count);
  add("Transfers", ({ row }) => row.transfer_ends_s.length, count);
  return rows;
}
