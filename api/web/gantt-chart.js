// A Gantt chart in SVG for many thousands of items: what is narrower than a few pixels is drawn together.
import { seconds } from "./numbers.js";

export const KINDS = { backward: 0, compute: 0, forward: 1, collective: 2, copy: 2, ready: 3, carried: 4, tail: 5, group: 6 };
const NUM_COLORS = 8;
const NUM_KINDS = KINDS.group + NUM_COLORS;
export const groupKind = (number) => KINDS.group + (number % NUM_COLORS);

const NS = "http://www.w3.org/2000/svg";
const WIDE = 4;

// Heights grow with the page's letters, so that large screens have a large chart.
let [LANE, LANE_GAP, TITLE, AXIS, BAND_GAP, LETTER, BASE] = [];
const AREA_LANES = 3;
function fit() {
  const unit = Math.max(parseFloat(getComputedStyle(document.documentElement).fontSize) / 15, 0.9);
  [LANE, LANE_GAP, TITLE, AXIS, BAND_GAP, LETTER, BASE] = [20, 7, 24, 26, 12, 6.7, 4].map((size) => size * unit);
}
fit();

function element(name, attributes = {}, parent = null) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent?.append(made);
  return made;
}

// The first item of sorted, disjoint ones that ends after a moment.
function firstAfter(ends, at) {
  let low = 0;
  let high = ends.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] > at) high = middle;
    else low = middle + 1;
  }
  return low;
}

function niceStep(span, most) {
  const rough = span / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}

// Draws; knows nothing of Preact. `bands` are [{title, marks, arrows, lanes}]. A lane is {label, starts, ends, kinds, critical,
// carried, text, describe}, or has {values, least, most, limit, note, floor} in place of kinds: an area as high as its values.
// An arrow goes {from: [lane, item], to: [lane, item]}.
export class GanttChart {
  constructor(svg, { onSelect, onView }) {
    this.svg = svg;
    this.onSelect = onSelect;
    this.onView = onView;
    this.view = [0, 1];
    this.frame = 0;
    this.selected = null;
    this.width = 600;
  }

  // `first` is the end of the view at first, if that is not the whole.
  show(bands, end, view, first = end, counted = false) {
    this.bands = bands;
    this.counted = counted;
    this.end = end || 1;
    this.first = first || this.end;
    this.selected = null;
    this.carried = undefined;
    this.sharing = null;
    const wanted = this.chosen === undefined ? view : this.chosen;
    this.view = wanted && wanted[1] > wanted[0] ? wanted : [0, this.first];
    this.build();
  }

  resize(width) {
    if (Math.abs(width - this.width) < 1) return;
    this.width = width;
    if (this.bands) this.build();
  }

  get gutter() {
    return Math.max(64, Math.min(22 * LETTER, this.width * 0.2));
  }

  build() {
    fit();
    this.svg.replaceChildren();
    const clip = element("clipPath", { id: "gantt-clip" }, element("defs", {}, this.svg));
    this.clip = element("rect", {}, clip);
    this.axis = element("g", { class: "axis" }, this.svg);
    this.drawn = [];
    let y = AXIS;
    for (const band of this.bands) {
      const title = element("text", { class: "band-title", x: 0, y: y + TITLE * 0.66 }, this.svg);
      title.textContent = this.width < 480 ? band.short || band.title : band.title;
      const top = y;
      y += TITLE;
      for (const lane of band.lanes) {
        const group = element("g", {}, this.svg);
        const height = lane.values ? AREA_LANES * LANE : LANE;
        const label = element("text", { class: "lane-label", x: 0, y: y + LANE / 2 + BASE }, group);
        const room = Math.floor((this.gutter - 8) / LETTER);
        label.textContent = lane.label.length > room ? `${lane.label.slice(0, room - 1)}…` : lane.label;
        if (lane.label.length > room) element("title", {}, label).textContent = lane.label;
        const inside = element("g", { "clip-path": "url(#gantt-clip)" }, group);
        element("rect", { class: "lane-floor", x: this.gutter, y, width: Math.max(this.width - this.gutter, 1), height }, inside);
        const paths = Array.from({ length: NUM_KINDS }, (_, kind) => element("path", { class: `k${kind}` }, inside));
        const critical = element("path", { class: "critical" }, inside);
        const alike = element("path", { class: "alike" }, inside);
        const words = element("g", { class: "words" }, inside);
        this.drawn.push({ lane, band, y, height, paths, critical, alike, words });
        // Arrows need room between lanes.
        y += height + (band.arrows?.length ? LANE : LANE_GAP);
      }
      band.arrowsGroup = element("g", { "clip-path": "url(#gantt-clip)" }, this.svg);
      band.marksGroup = element("g", { "clip-path": "url(#gantt-clip)" }, this.svg);
      band.titleY = top + TITLE * 0.66;
      band.extent = [top + TITLE - 3, y - LANE_GAP + 3];
      y += BAND_GAP;
    }
    this.cursor = element("rect", { class: "chosen", width: 0, height: LANE + 4 }, this.svg);
    this.height = y;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${y}`);
    this.svg.setAttribute("height", y);
    this.svg.setAttribute("width", this.width);
    for (const [name, value] of Object.entries({ x: this.gutter, y: 0, width: Math.max(this.width - this.gutter, 1), height: y })) {
      this.clip.setAttribute(name, value);
    }
    this.draw();
  }

  x(at) {
    return this.gutter + ((at - this.view[0]) / (this.view[1] - this.view[0])) * (this.width - this.gutter);
  }

  at(x) {
    return this.view[0] + ((x - this.gutter) / (this.width - this.gutter)) * (this.view[1] - this.view[0]);
  }

  setView(from, to) {
    const least = this.end * 1e-6;
    const span = Math.min(Math.max(to - from, least), this.end * 1.02);
    const start = Math.min(Math.max(from, -0.01 * this.end), this.end * 1.01 - span);
    this.view = [start, start + span];
    this.redraw();
    this.chosen = span >= this.end * 0.999 ? null : this.view;
    this.onView(this.chosen);
  }

  zoom(factor, around = (this.view[0] + this.view[1]) / 2) {
    const [from, to] = this.view;
    this.setView(around - (around - from) * factor, around + (to - around) * factor);
  }

  pan(share) {
    const span = this.view[1] - this.view[0];
    this.setView(this.view[0] + share * span, this.view[1] + share * span);
  }

  whole() {
    this.setView(0, this.end);
  }

  redraw() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw() {
    for (const drawn of this.drawn) {
      if (drawn.lane.values) this.drawArea(drawn);
      else this.drawLane(drawn);
    }
    this.drawAlike();
    this.drawAxis();
    for (const band of this.bands) {
      this.drawMarks(band);
      this.drawArrows(band);
    }
    this.drawChosen();
  }

  drawLane({ lane, y, paths, critical, words }) {
    const { starts, ends, kinds } = lane;
    const [from, to] = this.view;
    const scale = (this.width - this.gutter) / (to - from);
    const shapes = Array.from({ length: NUM_KINDS }, () => []);
    const runs = new Float64Array(2 * NUM_KINDS).fill(NaN);
    const marked = [];
    let markedFrom = NaN;
    let markedTo = NaN;
    words.replaceChildren();
    const flush = (kind) => {
      const left = runs[2 * kind];
      const wide = Math.max(runs[2 * kind + 1] - left, 0.6);
      shapes[kind].push(`M${left.toFixed(1)} ${y}h${wide.toFixed(1)}v${LANE}h-${wide.toFixed(1)}z`);
    };
    for (let item = firstAfter(ends, from); item < starts.length && starts[item] < to; item += 1) {
      const left = Math.max(this.gutter + (starts[item] - from) * scale, this.gutter - 2);
      const right = Math.min(this.gutter + (ends[item] - from) * scale, this.width + 2);
      const kind = kinds[item];
      if (right - left >= WIDE) {
        const wide = (right - left - 0.8).toFixed(1);
        shapes[kind].push(`M${left.toFixed(1)} ${y}h${wide}v${LANE}h-${wide}z`);
        const text = right - left > LANE ? lane.text(item) : "";
        const room = Math.floor((right - left - 6) / LETTER);
        if (text && room >= Math.min(text.length, 4)) {
          const word = element("text", { x: (left + 3).toFixed(1), y: y + LANE / 2 + BASE, class: `w${kind}` }, words);
          word.textContent = text.length > room ? `${text.slice(0, room - 1)}…` : text;
        }
      } else if (left - runs[2 * kind + 1] < 1) {
        runs[2 * kind + 1] = Math.max(right, runs[2 * kind + 1]);
      } else {
        if (!Number.isNaN(runs[2 * kind])) flush(kind);
        runs[2 * kind] = left;
        runs[2 * kind + 1] = right;
      }
      if (lane.critical?.[item]) {
        if (left - markedTo < 1.5) markedTo = right;
        else {
          if (!Number.isNaN(markedFrom)) marked.push(`M${markedFrom.toFixed(1)} ${y + LANE + 1}h${Math.max(markedTo - markedFrom, 1).toFixed(1)}v3h-${Math.max(markedTo - markedFrom, 1).toFixed(1)}z`);
          markedFrom = left;
          markedTo = right;
        }
      }
    }
    for (let kind = 0; kind < NUM_KINDS; kind += 1) {
      if (!Number.isNaN(runs[2 * kind])) flush(kind);
      paths[kind].setAttribute("d", shapes[kind].join(""));
    }
    if (!Number.isNaN(markedFrom)) marked.push(`M${markedFrom.toFixed(1)} ${y + LANE + 1}h${Math.max(markedTo - markedFrom, 1).toFixed(1)}v3h-${Math.max(markedTo - markedFrom, 1).toFixed(1)}z`);
    critical.setAttribute("d", marked.join(""));
  }

  // Values over time as an area; of those that fall on one pixel, the highest.
  drawArea({ lane, y, height, paths, critical, words }) {
    const { starts, ends, values, least, most, limit } = lane;
    const [from, to] = this.view;
    const level = (value) => y + height * (1 - (value - least) / (most - least || 1));
    const shape = [];
    let column = -1;
    let highest = 0;
    words.replaceChildren();
    for (let item = firstAfter(ends, from); item < starts.length && starts[item] < to; item += 1) {
      const left = Math.round(Math.max(this.x(starts[item]), this.gutter));
      if (left > column) {
        shape.push(column < 0 ? `M${left} ${y + height}` : `V${level(highest).toFixed(1)}H${left}`);
        column = left;
        highest = values[item];
      } else highest = Math.max(highest, values[item]);
    }
    if (column >= 0) shape.push(`V${level(highest).toFixed(1)}H${Math.min(this.x(ends[ends.length - 1]), this.width).toFixed(1)}V${y + height}z`);
    paths[KINDS.backward].setAttribute("d", shape.join(""));
    critical.setAttribute("d", limit == null ? "" : `M${this.gutter} ${(level(limit) - 1).toFixed(1)}H${this.width}v2H${this.gutter}z`);
    const write = (text, at) => { element("text", { x: this.gutter + 4, y: at, class: "w0" }, words).textContent = text; };
    write(lane.note, y + LANE / 2 + BASE);
    if (least > 0) write(lane.floor, y + height - BASE);
  }

  // Who waits for whom: from item to item, with a head.
  drawArrows({ arrows = [], lanes, arrowsGroup }) {
    arrowsGroup.replaceChildren();
    const place = ([lane, item]) => {
      const { y } = this.drawn.find((each) => each.lane === lanes[lane]);
      return [this.x((lanes[lane].starts[item] + lanes[lane].ends[item]) / 2), y];
    };
    for (const { from, to } of arrows) {
      const [x1, y1] = place(from);
      const [x2, y2] = place(to);
      const down = y2 > y1 ? 1 : -1;
      const start = y1 + (down > 0 ? LANE : 0);
      const tip = y2 + (down > 0 ? 0 : LANE);
      const head = 0.35 * LANE;
      const middle = (start + tip) / 2;
      element("path", { class: "arrow", d: `M${x1} ${start}C${x1} ${middle} ${x2} ${middle} ${x2} ${tip - down * head}` }, arrowsGroup);
      element("path", { class: "arrow-head", d: `M${x2} ${tip}l${-head * 0.7} ${-down * head}h${head * 1.4}z` }, arrowsGroup);
    }
  }

  drawAxis() {
    this.axis.replaceChildren();
    const [from, to] = this.view;
    const rough = niceStep(to - from, Math.max(2, (this.width - this.gutter) / (13 * LETTER)));
    const step = this.counted ? Math.max(rough, 1) : rough;
    const unit = this.counted ? [1, ""] : this.end < 1e-3 ? [1e6, "µs"] : this.end < 2 ? [1e3, "ms"] : [1, "s"];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const x = this.x(at);
      if (x < this.gutter - 1) continue;
      element("line", { x1: x, x2: x, y1: AXIS - 6, y2: this.height }, this.axis);
      const places = Math.max(0, -Math.floor(Math.log10(step * unit[0]) + 1e-9));
      const text = `${(at * unit[0]).toFixed(Math.min(places, 6))} ${unit[1]}`.trim();
      const last = x > this.width - 40;
      element("text", { x, y: AXIS * 0.57, "text-anchor": last ? "end" : x < this.gutter + 20 ? "start" : "middle" }, this.axis).textContent = text;
    }
  }

  drawMarks(band) {
    band.marksGroup.replaceChildren();
    for (const { at, name } of band.marks || []) {
      const x = this.x(at);
      const line = element("line", { x1: x, x2: x, y1: band.extent[0], y2: band.extent[1], class: `mark ${name}` }, band.marksGroup);
      element("title", {}, line).textContent = `${name}: ${seconds(at)}`;
      if (name === "end" && at > this.first && at > this.view[1]) {
        element("text", { class: "beyond", x: this.width - 4, y: band.titleY, "text-anchor": "end" }, band.marksGroup).textContent = `ends at ${seconds(at)} ▸`;
      }
    }
  }

  drawChosen() {
    if (!this.selected) {
      this.cursor.setAttribute("width", 0);
      return;
    }
    const { drawn, item } = this.selected;
    const left = Math.max(this.x(drawn.lane.starts[item]), this.gutter);
    const right = Math.min(this.x(drawn.lane.ends[item]), this.width);
    this.cursor.setAttribute("x", left - 1);
    this.cursor.setAttribute("y", drawn.y - 2);
    this.cursor.setAttribute("width", right >= left ? right - left + 2 : 0);
    this.cursor.setAttribute("height", drawn.height + 4);
  }

  // Transfers of any row that carry a gradient of the chosen one have an edge.
  drawAlike() {
    const [from, to] = this.view;
    for (const { lane, y, alike } of this.drawn) {
      const runs = [];
      const shares = new Map();
      for (let item = this.sharing && lane.carried ? firstAfter(lane.ends, from) : Infinity; item < lane.starts.length && lane.starts[item] < to; item += 1) {
        const group = lane.carried(item);
        if (!shares.has(group)) shares.set(group, group.gradients.some((gradient) => this.sharing.has(gradient)));
        if (!shares.get(group)) continue;
        const left = Math.max(this.x(lane.starts[item]), this.gutter - 2);
        const right = Math.max(Math.min(this.x(lane.ends[item]), this.width + 2), left + 1);
        const last = runs[runs.length - 1];
        if (last && left - last[1] < 1) last[1] = Math.max(right, last[1]);
        else runs.push([left, right]);
      }
      alike.setAttribute("d", runs.map(([left, right]) => `M${left.toFixed(1)} ${y}H${right.toFixed(1)}v${LANE}H${left.toFixed(1)}z`).join(""));
    }
  }

  // What lies under a point; an item that is too narrow to hit is found within three pixels.
  find(x, y) {
    const drawn = this.drawn.find((each) => y >= each.y - 2 && y <= each.y + each.height + 3);
    if (!drawn || x < this.gutter) return null;
    const at = this.at(x);
    const near = (3 / (this.width - this.gutter)) * (this.view[1] - this.view[0]);
    const item = firstAfter(drawn.lane.ends, at - near);
    if (item >= drawn.lane.starts.length || drawn.lane.starts[item] > at + near) return null;
    return { drawn, item };
  }

  select(found) {
    const carried = found?.drawn.lane.carried?.(found.item);
    if (carried !== this.carried) {
      this.carried = carried;
      this.sharing = carried ? new Set(carried.gradients) : null;
      this.drawAlike();
    }
    this.selected = found;
    this.drawChosen();
    this.onSelect(found && { lines: found.drawn.lane.describe(found.item), lane: found.drawn.lane.label, band: found.drawn.band.title });
  }

  // Marks an item of the first lane with a label, as words beside the chart ask for.
  point(label, item) {
    const drawn = this.drawn.find(({ lane }) => lane.label === label);
    this.select(drawn && item >= 0 && item < drawn.lane.starts.length ? { drawn, item } : null);
  }

  // Goes to the next or previous item of the lane, or to another lane, from the keyboard.
  step(items, lanes) {
    const lane = this.selected ? this.drawn.indexOf(this.selected.drawn) : 0;
    const next = this.drawn[Math.min(Math.max(lane + lanes, 0), this.drawn.length - 1)];
    const count = next.lane.starts.length;
    if (!count) return;
    let item;
    if (!this.selected) item = firstAfter(next.lane.ends, this.view[0]);
    else if (lanes) item = firstAfter(next.lane.ends, this.selected.drawn.lane.starts[this.selected.item]);
    else item = this.selected.item + items;
    item = Math.min(Math.max(item, 0), count - 1);
    const [from, to] = this.view;
    if (next.lane.starts[item] < from || next.lane.ends[item] > to) {
      const middle = (next.lane.starts[item] + next.lane.ends[item]) / 2;
      const half = Math.max((to - from) / 2, next.lane.ends[item] - next.lane.starts[item]);
      this.setView(middle - half, middle + half);
    }
    this.select({ drawn: next, item });
  }

  // The chart as a file of its own: colors are those of the page.
  toSvg() {
    const copy = this.svg.cloneNode(true);
    const originals = this.svg.querySelectorAll("path,rect,line,text");
    copy.querySelectorAll("path,rect,line,text").forEach((each, number) => {
      const style = getComputedStyle(originals[number]);
      each.removeAttribute("class");
      for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight"]) {
        each.setAttribute(name, style.getPropertyValue(name));
      }
      if (each.tagName === "text") each.setAttribute("font-family", "sans-serif");
    });
    const ground = element("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.body).backgroundColor });
    copy.prepend(ground);
    copy.setAttribute("xmlns", NS);
    return new XMLSerializer().serializeToString(copy);
  }
}
