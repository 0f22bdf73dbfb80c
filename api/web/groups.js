// A schedule's groups and segments as tables.
import { html, useMemo, useState } from "./elements.js";
import { bytes, counted, milliseconds } from "./numbers.js";
import { Table } from "./parts.js";

// Groups as rows; those of a sharded schedule are called by their op.
export const groupName = ({ op }, number) => (op ? `${op} ${number}` : number);

function groupRows(schedule) {
  const critical = new Set(schedule.proofs.flatMap(({ set }) => set));
  const bound = schedule.bound; // of parameter servers: gradients that are ready late and needed early
  const inSet = (group, number) => (schedule.exchange === "servers"
    ? group.ready_s >= bound.min_ready_s && group.tail_s >= bound.min_tail_s : critical.has(number));
  const segments = new Array(schedule.groups.length).fill(0);
  for (const { group } of sent(schedule)) segments[group] += 1;
  return schedule.groups.map((group, number) => ({
    name: groupName(group, number), gradients: group.tensors, size: group.size_bytes,
    ready: group.op === "all-gather" ? null : group.ready_s, tail: group.op === "reduce-scatter" ? null : group.tail_s,
    duration: group.transfer_s ?? null, segments: segments[number], critical: inSet(group, number),
  }));
}

// Segments by their first transfer: a push stands for its pull too, which is the transfer behind it.
const sent = (schedule) => schedule.transfers.filter(({ op }) => op !== "pull");

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
  const pulls = schedule.transfers.filter(({ op }) => op === "pull");
  return sent(schedule).map((segment, number) => ({
    number, group: groupName(schedule.groups[segment.group], segment.group), priority: segment.priority, start: segment.start_s,
    end: (pulls[number] || segment).end_s, size: segment.size_bytes,
  }));
}

export function Groups({ resource }) {
  const [shown, setShown] = useState("groups");
  const groups = useMemo(() => groupRows(resource.schedule), [resource.id]);
  const segments = useMemo(() => segmentRows(resource.schedule), [resource.id]);
  return html`<section class="card" aria-labelledby="groups-title">
    <div class="row between"><h2 id="groups-title">${counted(groups.length, "group")} in ${counted(segments.length, "segment")}</h2>
      <div class="row" role="group" aria-label="Table">
        ${["groups", "segments"].map((name) => html`<button type="button" aria-pressed=${String(shown === name)} onClick=${() => setShown(name)}>${name === "groups" ? "Groups" : "Segments"}</button>`)}
      </div></div>
    ${shown === "groups" ? html`<${Table} key="groups" caption="Groups" rows=${groups} columns=${GROUP_COLUMNS} pageSize=${25} />`
      : html`<${Table} key="segments" caption="Segments" rows=${segments} columns=${SEGMENT_COLUMNS} pageSize=${25} />`}
  </section>`;
}
