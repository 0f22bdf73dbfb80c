// A schedule's groups and segments as tables.
import { html, useMemo, useState } from "./elements.js";
import { bytes, count, milliseconds } from "./numbers.js";
import { Table } from "./parts.js";

// Groups of every kind of schedule as rows.
function groupRows(schedule) {
  if (schedule.schema_version === 3) {
    const critical = { "reduce-scatter": new Set(schedule.certificate.reduce_scatters), "all-gather": new Set(schedule.certificate.all_gathers) };
    return [["reduce-scatter", schedule.reduce_scatters], ["all-gather", schedule.all_gathers]].flatMap(([half, calls]) => calls.map((call, number) => ({
      name: `${half} ${number}`, gradients: call.shards.flatMap((shard) => schedule.shards[shard].gradients), size: call.size_bytes,
      ready: half === "reduce-scatter" ? call.time_s : null, tail: half === "all-gather" ? call.time_s : null, duration: call.duration_s,
      segments: schedule.segments.filter((segment) => segment.half === half && segment.call === number).length, critical: critical[half].has(number),
    })));
  }
  const critical = new Set(schedule.certificate?.groups || []);
  // The proof for parameter servers names no groups: it is about gradients that are ready late and needed early.
  const bound = schedule.schema_version === 2 ? schedule.bound : null;
  const segments = new Array(schedule.groups.length).fill(0);
  for (const { group } of schedule.segments) segments[group] += 1;
  return schedule.groups.map((group, number) => ({
    name: number, gradients: group.gradients, size: group.size_bytes, ready: group.ready_s, tail: group.tail_s,
    duration: group.allreduce_s ?? null, segments: segments[number],
    critical: bound ? group.ready_s >= bound.min_ready_s && group.tail_s >= bound.min_tail_s : critical.has(number),
  }));
}

const GROUP_COLUMNS = [
  { name: "group", title: "Group", value: ({ name }) => name, numeric: true },
  { name: "gradients", title: "Gradients", value: ({ gradients }) => gradients[0] || "", show: ({ gradients }) => html`<span class="name">${gradients[0] || "–"}</span>${gradients.length > 1
    && html` <details class="inline"><summary>and ${gradients.length - 1} more</summary><span class="name">${gradients.slice(1).join(", ")}</span></details>`}` },
  { name: "size", title: "Size", value: ({ size }) => size, show: ({ size }) => bytes(size), numeric: true },
  { name: "ready", title: "Ready", value: ({ ready }) => ready, show: ({ ready }) => milliseconds(ready), numeric: true },
  { name: "tail", title: "Tail", value: ({ tail }) => tail, show: ({ tail }) => milliseconds(tail), numeric: true },
  { name: "duration", title: "On the network", value: ({ duration }) => duration, show: ({ duration }) => milliseconds(duration), numeric: true },
  { name: "segments", title: "Segments", value: ({ segments }) => segments, numeric: true },
  { name: "critical", title: "Certificate", value: ({ critical }) => (critical ? 0 : 1), show: ({ critical }) => (critical ? "in the set" : "") },
];

const SEGMENT_COLUMNS = [
  { name: "number", title: "Segment", value: ({ number }) => number, numeric: true },
  { name: "group", title: "Group", value: ({ group }) => group, numeric: true },
  { name: "priority", title: "Priority", value: ({ priority }) => priority, numeric: true },
  { name: "start", title: "Start", value: ({ start }) => start, show: ({ start }) => milliseconds(start), numeric: true },
  { name: "end", title: "End", value: ({ end }) => end, show: ({ end }) => milliseconds(end), numeric: true },
  { name: "size", title: "Size", value: ({ size }) => size, show: ({ size }) => bytes(size), numeric: true },
];

export function segmentRows(schedule) {
  return schedule.segments.map((segment, number) => ({
    number, group: segment.group ?? `${segment.half} ${segment.call}`, priority: segment.priority, start: segment.start_s ?? segment.push_start_s,
    end: segment.end_s ?? segment.pull_end_s, size: segment.size_bytes ?? null,
  }));
}

export function Groups({ resource }) {
  const [shown, setShown] = useState("groups");
  const groups = useMemo(() => groupRows(resource.schedule), [resource.id]);
  const segments = useMemo(() => segmentRows(resource.schedule), [resource.id]);
  return html`<section class="card" aria-labelledby="groups-title">
    <div class="row between"><h2 id="groups-title">${count(groups.length)} groups in ${count(segments.length)} segments</h2>
      <div class="row" role="group" aria-label="Table">
        ${["groups", "segments"].map((name) => html`<button type="button" aria-pressed=${String(shown === name)} onClick=${() => setShown(name)}>${name === "groups" ? "Groups" : "Segments"}</button>`)}
      </div></div>
    ${shown === "groups" ? html`<${Table} key="groups" caption="Groups" rows=${groups} columns=${GROUP_COLUMNS} pageSize=${25} />`
      : html`<${Table} key="segments" caption="Segments" rows=${segments} columns=${SEGMENT_COLUMNS} pageSize=${25} />`}
  </section>`;
}
