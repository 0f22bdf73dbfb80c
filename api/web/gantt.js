// The Gantt chart as a part of the page: pointer, wheel, keyboard, and what is read out.
import { html, useEffect, useRef, useState } from "./elements.js";
import { adjust } from "./address.js";
import { GanttChart } from "./gantt-chart.js";

// What of the chart is looked at, as the address says it: [from, to] or null, and how to remember another.
export function useView(values) {
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const remember = (view) => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => adjust(view ? { from: view[0].toPrecision(6), to: view[1].toPrecision(6) } : { from: "", to: "" }), 300);
  };
  return [values.from && values.to ? [Number(values.from), Number(values.to)] : null, remember];
}

// What the colors and lines of windows mean.
export function Legend({ phases, measured = false }) {
  return html`<ul class="legend">
    <li><i class="k0"></i>compute, backward</li><li><i class="k1"></i>compute that waits for gradients</li>
    ${phases.includes("collective") && html`<li><i class="k2"></i>collectives that no schedule moves</li>`}
    <li><i class="k6"></i><i class="k7"></i><i class="k8"></i>groups of gradients on the network</li>
    <li><i class="critical"></i>in the certificate</li><li><i class="line end"></i>end</li><li><i class="line bound"></i>no schedule is faster</li>
    ${measured && html`<li><i class="line measured"></i>measured iteration</li>`}
  </ul>`;
}

// `counted`: the axis has numbers of items in place of times.
export function Gantt({ label, bands, end, first, view, onView, chartRef, counted }) {
  const svg = useRef(null);
  const frame = useRef(null);
  const chart = useRef(null);
  const [tip, setTip] = useState(null);
  const dragged = useRef(null);
  const viewed = useRef(onView);
  viewed.current = onView;

  useEffect(() => {
    chart.current = new GanttChart(svg.current, { onSelect: (found) => setTip((now) => (found ? { ...now, ...found } : null)), onView: (now) => viewed.current?.(now) });
    if (chartRef) chartRef.current = chart.current;
    const observer = new ResizeObserver(([entry]) => chart.current.resize(entry.contentRect.width));
    observer.observe(frame.current);
    chart.current.width = frame.current.clientWidth || 600;
    return () => observer.disconnect();
  }, []);
  // What was chosen counts until whoever holds the view knows of it: another answer may arrive meanwhile.
  useEffect(() => { chart.current.chosen = undefined; }, [view?.[0], view?.[1]]);
  useEffect(() => {
    setTip(null);
    chart.current.show(bands, end, view, first, counted);
  }, [bands, end]);

  // Not through Preact: the browser must know at once that a wheel over the chart may be refused.
  useEffect(() => {
    const turn = (event) => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : event.shiftKey ? event.deltaY : 0;
      if (event.ctrlKey || event.metaKey) chart.current.zoom(1.0015 ** event.deltaY, chart.current.at(event.offsetX));
      else if (sideways) chart.current.pan(sideways / chart.current.width);
      else return;
      event.preventDefault();
    };
    svg.current.addEventListener("wheel", turn, { passive: false });
    return () => svg.current?.removeEventListener("wheel", turn);
  }, []);

  const place = (event) => {
    const box = svg.current.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const move = (event) => {
    const [x, y] = place(event);
    if (dragged.current) {
      const { from, at } = dragged.current;
      const span = at[1] - at[0];
      const by = ((from - x) / (chart.current.width - chart.current.gutter)) * span;
      chart.current.setView(at[0] + by, at[1] + by);
      return;
    }
    const found = chart.current.find(x, y);
    chart.current.select(found);
    if (found) setTip((now) => ({ ...now, x, y, width: chart.current.width }));
  };
  const press = (event) => {
    if (event.button) return;
    dragged.current = { from: place(event)[0], at: [...chart.current.view] };
    svg.current.setPointerCapture(event.pointerId);
  };
  const release = () => { dragged.current = null; };
  const keys = {
    ArrowLeft: () => chart.current.pan(-0.1), ArrowRight: () => chart.current.pan(0.1),
    "+": () => chart.current.zoom(0.7), "=": () => chart.current.zoom(0.7), "-": () => chart.current.zoom(1 / 0.7),
    0: () => chart.current.whole(), Home: () => chart.current.whole(),
    ArrowUp: () => chart.current.step(0, -1), ArrowDown: () => chart.current.step(0, 1),
    "]": () => chart.current.step(1, 0), ".": () => chart.current.step(1, 0),
    "[": () => chart.current.step(-1, 0), ",": () => chart.current.step(-1, 0),
    Escape: () => chart.current.select(null),
  };
  const press_key = (event) => {
    const action = event.ctrlKey || event.metaKey || event.altKey ? null : keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
    if (chart.current.selected) {
      const { drawn, item } = chart.current.selected;
      setTip((now) => now && { ...now, x: Math.max(chart.current.x(drawn.lane.starts[item]), chart.current.gutter), y: drawn.y, width: chart.current.width });
    }
  };

  return html`<div class="gantt">
    <div class="row tools" role="group" aria-label=${`Zoom: ${label}`}>
      <button type="button" onClick=${() => chart.current.zoom(0.6)} aria-label="Zoom in">+</button>
      <button type="button" onClick=${() => chart.current.zoom(1 / 0.6)} aria-label="Zoom out">−</button>
      <button type="button" onClick=${() => chart.current.pan(-0.4)} aria-label="Pan left">←</button>
      <button type="button" onClick=${() => chart.current.pan(0.4)} aria-label="Pan right">→</button>
      <button type="button" onClick=${() => chart.current.whole()}>${counted ? "Everything" : "Whole window"}</button>
      <span class="faint wide-only">Drag to pan, Ctrl and wheel to zoom; with the keyboard: arrows, + and −, [ and ] for single items</span>
    </div>
    <div class="gantt-frame" ref=${frame} tabindex="0" role="application" aria-roledescription="timeline" aria-label=${label}
      onKeyDown=${press_key}>
      <svg ref=${svg} aria-hidden="true" onPointerMove=${move} onPointerDown=${press} onPointerUp=${release}
        onPointerCancel=${release} onPointerLeave=${() => { if (!dragged.current) chart.current.select(null); }}></svg>
      ${tip?.lines && tip.x !== undefined && html`<div class="tip" style=${{
        left: `${Math.min(tip.x + 12, Math.max(tip.width - 250, 0))}px`, top: `${tip.y + 22}px` }}>
        ${tip.lines.map((line, number) => (number ? html`<div>${line}</div>` : html`<strong>${line}</strong>`))}
      </div>`}
    </div>
    <p class="hidden" role="status">${tip?.lines ? `${tip.lane}: ${tip.lines.join(", ")}` : ""}</p>
  </div>`;
}
