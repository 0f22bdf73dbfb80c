// What the job would gain elsewhere: one axis is swept, the others stand where their sliders are.
import { html, useMemo } from "./elements.js";
import { adjust, linkTo, useTitle } from "./address.js";
import { Curves } from "./curves.js";
import { GraphWhatIf } from "./graph-what-if.js";
import { useLoaded, useSettled } from "./loading.js";
import { compact, percent, seconds } from "./numbers.js";
import { Empty, Entry, Field, ProblemNote, Progress, Table, Waiting, csv, save } from "./parts.js";
import { checkId, getJson, postTask, profileWith, resourcePath } from "./service.js";
import { policyName } from "./windows.js";

const POLICIES = ["pace", "ddp", "horovod", "bytescheduler", "fifo", "sharded"];
const FIRST = "pace,ddp,bytescheduler";
// The first answers the question; `least` is where its axis begins at the latest.
const METRICS = {
  speedup: { name: "Speed-up", of: (cell) => cell.speedup, least: 1, unit: "×" },
  iteration_s: { name: "Iteration", of: (cell) => cell.iteration_s * 1e3, unit: " ms", logY: true },
  throughput: { name: "Throughput", of: (cell) => cell.throughput, logY: true },
  scaling_efficiency: { name: "Scaling efficiency", of: (cell) => cell.scaling_efficiency * 100, unit: " %" },
};
// Sliders move in steps of a twentieth of a decade, or by whole numbers.
const AXES = {
  bandwidth: { field: "bandwidth_gbps", name: "Bandwidth, Gbit/s", least: 0.1, most: 800, sweep: [1, 100], log: true },
  workers: { field: "workers", name: "Workers", least: 2, most: 1024, sweep: [2, 64], log: true, whole: true },
  latency: { field: "latency_s", name: "Latency of a message, µs", least: 0.1, most: 1e4, sweep: [1, 1000], log: true, factor: 1e-6 },
  compute: { field: "compute_speedup", name: "Compute speed, times", least: 0.1, most: 10, sweep: [0.5, 4], log: true },
  compression: { field: "compression", name: "Compression, times", least: 1, most: 1000, sweep: [1, 32], log: true },
};
const NUM_POINTS = 14;
// On narrow screens the controls stand above the curve, which must not be pushed out of sight.
const WIDE = matchMedia("(min-width: 62rem)");

function sweep(axis, from, to) {
  const values = new Set();
  for (let at = 0; at < NUM_POINTS; at += 1) {
    const value = from * (to / from) ** (at / (NUM_POINTS - 1));
    values.add(axis.whole ? Math.round(value) : Number(value.toPrecision(4)));
  }
  return [...values].sort((a, b) => a - b);
}

const number = (text, otherwise) => (text !== undefined && text !== "" && Number(text) > 0 ? Number(text) : otherwise);

export function WhatIf({ values }) {
  if (values.graph) return html`<${GraphWhatIf} key=${values.graph} values=${values} />`;
  if (!values.profile) {
    return html`<${Empty} title="No profile is chosen"><p>Choose one under <a href=${linkTo("start")}>Start</a>.</p><//>`;
  }
  return html`<${Asked} key=${values.profile} values=${values} />`;
}

function Asked({ values }) {
  const over = AXES[values.over] ? values.over : "bandwidth";
  const axis = AXES[over];
  const low = Math.max(number(values.low, axis.sweep[0]), axis.least);
  const high = Math.max(number(values.high, axis.sweep[1]), low * 1.01);
  const policies = (values.policies || FIRST).split(",").filter((name) => POLICIES.includes(name));
  const metric = METRICS[values.metric] ? values.metric : "speedup";
  const clipped = values.clip === "1";
  const grid = { policies: policies.length ? policies : ["pace"], baseline: policies.includes("ddp") ? "ddp" : (policies[0] || "pace") };
  grid[axis.field] = sweep(axis, low, high).map((value) => value * (axis.factor || 1));
  for (const [name, { field, factor = 1 }] of Object.entries(AXES)) {
    if (name !== over && number(values[name])) grid[field] = [number(values[name]) * factor];
  }
  if (values.algorithm) grid.algorithm = [values.algorithm];
  const wanted = { grid, clip: values.clip };
  const question = useSettled(wanted);
  const answer = useLoaded(async (signal, progress) => {
    checkId("profile", values.profile);
    const profileId = question.clip === undefined ? values.profile : await profileWith(values.profile, clipped ? "global-norm" : "per-gradient", signal);
    // The job's own place is a point of the curve, whatever is swept.
    const { profile: own } = await getJson(resourcePath("profile", profileId), signal);
    const there = profiledValue(over, own);
    const points = question.grid[axis.field];
    const place = there === undefined ? [] : [Number((there * (axis.factor || 1)).toPrecision(6))].filter((value) => value > points[0] && value < points[points.length - 1]);
    const asked = { ...question.grid, [axis.field]: [...new Set([...points, ...place])].sort((a, b) => a - b) };
    const ask = (values) => postTask("v1/what-if", { profile_id: profileId, grid: { ...asked, [axis.field]: values } }, { signal, progress });
    const found = await ask(asked[axis.field]);
    let { cells } = found.what_if;
    // The largest speed-up may lie between two points: as many again are simulated around the best one, twice.
    for (let round = 0; round < 2; round += 1) {
      const simulated = new Set(cells.map((cell) => cell[axis.field]));
      const around = neighbors(cells, axis.field, question.grid.baseline);
      const more = around ? sweep({ ...axis, factor: undefined }, ...around).filter((value) => !simulated.has(value)) : [];
      if (more.length === 0) break;
      cells = [...cells, ...(await ask(more)).what_if.cells];
    }
    return { ...found, what_if: { ...found.what_if, cells } };
  }, [values.profile, JSON.stringify(question)]);
  const busy = answer.busy || JSON.stringify(question) !== JSON.stringify(wanted);
  const profile = useLoaded((signal) => getJson(resourcePath("profile", values.profile), signal), [values.profile]);
  const whatIf = answer.value?.what_if;
  const shown = useMemo(() => {
    if (!whatIf) return null;
    const field = Object.values(AXES).find(({ field: name }) => new Set(whatIf.cells.map((cell) => cell[name])).size > 1)?.field || axis.field;
    const factor = Object.values(AXES).find(({ field: name }) => name === field).factor || 1;
    const xs = [...new Set(whatIf.cells.map((cell) => cell[field]))].sort((a, b) => a - b);
    const names = [...new Set(whatIf.cells.map((cell) => cell.policy))];
    const series = names.map((name) => {
      const by = new Map(whatIf.cells.filter((cell) => cell.policy === name).map((cell) => [cell[field], METRICS[metric].of(cell)]));
      return { label: policyName(name), values: xs.map((value) => by.get(value) ?? null) };
    });
    return { field, factor, x: xs.map((value) => Number((value / factor).toPrecision(6))), series };
  }, [whatIf, metric]);
  const baseline = policyName(grid.baseline);
  const metricName = metric === "speedup" ? `Speed-up over ${baseline}` : METRICS[metric].name;
  const here = profiledValue(over, profile.value?.profile);
  const marks = here === undefined || !shown ? [] : [{ at: here, label: `as profiled: ${compact(here)}` }];
  useTitle(profile.value?.name, "What if");
  const set = (name) => (event) => adjust({ [name]: event.target.value });
  const toggle = (name) => adjust({ policies: (policies.includes(name) ? policies.filter((each) => each !== name) : [...policies, name]).join(",") });
  const xName = shown ? Object.values(AXES).find(({ field }) => field === shown.field).name : axis.name;
  return html`<div class="side-by-side">
    <section class="card controls" aria-labelledby="axes-title">
      <h2 id="axes-title">What if…</h2>
      <p class="name">${profile.value?.name || ""} <a href=${linkTo("result", { profile: values.profile, clip: values.clip })}>Result</a></p>
      <${Field} id="over" label="Over"><select id="over" value=${over} onChange=${(event) => adjust({ over: event.target.value, low: "", high: "" })}>
        ${Object.entries(AXES).map(([name, { name: text }]) => html`<option value=${name}>${text}</option>`)}</select><//>
      <div class="fields two">
        <${Field} id="low" label="From"><${Entry} id="low" type="number" step="any" min=${axis.least} value=${low} onChange=${set("low")} /><//>
        <${Field} id="high" label="To"><${Entry} id="high" type="number" step="any" min=${axis.least} value=${high} onChange=${set("high")} /><//>
      </div>
      <details open=${WIDE.matches}><summary>Change other settings</summary><div class="controls">
      ${Object.entries(AXES).filter(([name]) => name !== over).map(([name, each]) => html`<${Slider} key=${name} name=${name} axis=${each} value=${number(values[name])} profiled=${profiledValue(name, profile.value?.profile)} />`)}
      <${Field} id="algorithm" label="Algorithm"><select id="algorithm" value=${values.algorithm || ""} onChange=${set("algorithm")}>
        ${["", "ring", "tree", "halving-doubling"].map((name) => html`<option value=${name}>${name || "as profiled"}</option>`)}</select><//>
      <label class="switch"><input type="checkbox" role="switch" checked=${values.clip === undefined ? profile.value?.profile.update === "global-norm" : clipped}
        onChange=${(event) => adjust({ clip: event.target.checked ? "1" : "0" })} /> Clipping by the global norm</label>
      <fieldset class="checks"><legend>Policies</legend>${POLICIES.map((name) => html`<label><input type="checkbox" checked=${policies.includes(name)} onChange=${() => toggle(name)} />${policyName(name)}</label>`)}</fieldset>
      </div></details>
      <button type="button" onClick=${() => { location.hash = linkTo("what-if", { profile: values.profile }); }}>As profiled</button>
    </section>
    <section class="card" aria-labelledby="answer-title" aria-busy=${String(busy)}>
      <div class="row between"><h2 id="answer-title">${metricName} against ${xName.split(",")[0].toLowerCase()}</h2>
        <div class="row" role="group" aria-label="What is drawn">${Object.entries(METRICS).map(([name, each]) => html`<button type="button" aria-pressed=${String(name === metric)} onClick=${() => adjust({ metric: name })}>${each.name}</button>`)}</div></div>
      <${ProblemNote} error=${answer.error} retry=${answer.again} />
      <div class="steady">${busy && html`<${Progress} task=${answer.task || { state: "running" }} what="Simulating" />`}</div>
      ${!shown && busy && html`<${Waiting} what="the curve" rows=${8} />`}
      ${shown && html`<${Answer} cells=${whatIf.cells} shown=${shown} baseline=${grid.baseline} xName=${xName} here=${here} />
      <${Curves} label=${`${metricName} over ${xName}`} x=${shown.x} xLabel=${xName} logX=${true} marks=${marks} least=${METRICS[metric].least} unit=${METRICS[metric].unit}
        yLabel=${metric === "throughput" ? `Throughput, ${whatIf.throughput_unit}` : metricName} series=${shown.series} height=${420} logY=${METRICS[metric].logY} />
      <${Table} caption="Simulated points" first="x" rows=${whatIf.cells} pageSize=${28} columns=${[
        { name: "x", title: xName, value: (cell) => cell[shown.field] / shown.factor, show: (cell) => compact(cell[shown.field] / shown.factor), numeric: true },
        { name: "policy", title: "Policy", value: (cell) => policyName(cell.policy) },
        { name: "speedup", title: "Speed-up", value: (cell) => cell.speedup, show: (cell) => `${compact(cell.speedup)}×`, numeric: true },
        { name: "iteration", title: "Iteration", value: (cell) => cell.iteration_s, show: (cell) => seconds(cell.iteration_s), numeric: true },
        { name: "throughput", title: `Throughput, ${whatIf.throughput_unit}`, value: (cell) => cell.throughput, show: (cell) => compact(cell.throughput), numeric: true },
        { name: "efficiency", title: "Efficiency", value: (cell) => cell.scaling_efficiency, show: (cell) => percent(cell.scaling_efficiency), numeric: true },
      ]} />
      <div class="row"><button type="button" onClick=${() => save("what-if.csv", csv(Object.keys(whatIf.cells[0]), whatIf.cells.map(Object.values)), "text/csv")}>Points (CSV)</button></div>
      <details><summary>Assumptions about scaling</summary><ul>${whatIf.assumptions.map((line) => html`<li>${line}</li>`)}</ul></details>`}
    </section>
  </div>`;
}

const leading = (cells) => cells.filter(({ policy }) => policy === (cells.some((cell) => cell.policy === "pace") ? "pace" : "sharded"));
const fastest = (cells) => cells.reduce((one, other) => (other.speedup > one.speedup ? other : one));

// The points of an axis on both sides of the largest speed-up; null where nothing is compared.
function neighbors(cells, field, baseline) {
  const pace = leading(cells).sort((a, b) => a[field] - b[field]);
  if (pace.length < 2 || pace[0].policy === baseline) return null;
  const at = pace.indexOf(fastest(pace));
  return [pace[Math.max(at - 1, 0)][field], pace[Math.min(at + 1, pace.length - 1)][field]];
}

// The answer in a sentence: the speed-up at the job's own place, and the most that the curve shows.
function Answer({ cells, shown, baseline, xName, here }) {
  const pace = leading(cells);
  if (!pace.length || pace[0].policy === baseline) return null;
  const at = (cell) => cell[shown.field] / shown.factor;
  const best = fastest(pace);
  const beside = (neighbors(cells, shown.field, baseline) || []).filter((value) => value !== best[shown.field]).map((value) => compact(value / shown.factor));
  const near = here === undefined ? null : pace.reduce((one, other) => (Math.abs(Math.log(at(other) / here)) < Math.abs(Math.log(at(one) / here)) ? other : one));
  const inside = near && here >= shown.x[0] * 0.99 && here <= shown.x[shown.x.length - 1] * 1.01;
  const [, what, unit] = xName.match(/^(.*?)(?:, (.*))?$/);
  const place = (cell) => `${what.toLowerCase()} ${compact(at(cell))}${unit ? ` ${unit}` : ""}`;
  return html`<p class="verdict">${inside ? `At the profiled ${place(near)}, ${policyName(near.policy)} is ${compact(near.speedup)}× as fast as ${policyName(baseline)}. ` : ""}${best.speedup > 1.0005
    ? `The largest simulated speed-up is ${compact(best.speedup)}×, at ${place(best)}${beside.length ? ` (the nearest simulated points: ${beside.join(" and ")}${unit ? ` ${unit}` : ""})` : ""}.` : `${policyName(best.policy)} is nowhere on this curve faster than ${policyName(baseline)}.`}</p>`;
}

// What the profile says of an axis; undefined where its cost does not come from a network's numbers.
function profiledValue(name, profile) {
  if (!profile) return undefined;
  const { bandwidth_bytes_per_s: rate, latency_s: latency, kind } = profile.allreduce;
  const network = ["ring", "tree", "halving-doubling"].includes(kind);
  return { bandwidth: network ? rate * 8e-9 : undefined, workers: profile.workers, latency: network && latency ? latency * 1e6 : undefined, compute: 1, compression: 1 }[name];
}

function Slider({ name, axis, value, profiled }) {
  const position = (at) => Math.round(20 * Math.log10(Math.min(Math.max(at, axis.least), axis.most) / axis.least));
  const slide = (event) => {
    const at = Number(event.target.value);
    const found = axis.least * 10 ** (at / 20);
    const now = value ?? profiled ?? axis.least;
    let next = axis.whole ? Math.round(found) : Number(found.toPrecision(3));
    // A step that rounding undoes would hold the slider where it is.
    if (axis.whole && next === now) next += Math.sign(at - position(now));
    adjust({ [name]: next });
  };
  const id = `axis-${name}`;
  return html`<div class="field slider">
    <label for=${id}>${axis.name}</label>
    <div class="row tight">
      <input type="range" aria-label=${`${axis.name}, slider`} min="0" max=${position(axis.most)} step="1" value=${position(value ?? profiled ?? axis.least)}
        aria-valuetext=${value ? compact(value) : `as profiled${profiled ? `, ${compact(profiled)}` : ""}`} onInput=${slide} />
      <${Entry} id=${id} type="number" step="any" min=${axis.least} value=${value ?? ""} placeholder=${profiled ? compact(profiled) : "profiled"} onChange=${(event) => adjust({ [name]: event.target.value })} />
    </div>
  </div>`;
}
