// Curves by uPlot, in the page's colors, with the numbers as a table for those who do not see them.
import uPlot from "./vendor/uplot.js";
import { html, useEffect, useRef, useState } from "./elements.js";
import { compact, moment } from "./numbers.js";

const two = (number) => String(number).padStart(2, "0");

// Moments as the rest of the page writes them, as precise as their distance needs.
function moments(ticks) {
  const span = (ticks[ticks.length - 1] ?? 0) - (ticks[0] ?? 0);
  return ticks.map((tick) => {
    const at = new Date(tick * 1000);
    const day = `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    const clock = `${two(at.getHours())}:${two(at.getMinutes())}`;
    if (span < 300) return `${clock}:${two(at.getSeconds())}`;
    return span < 86_400 ? clock : span < 5 * 86_400 ? `${day} ${clock}` : day;
  });
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// What getPropertyValue gives may be light-dark(...), which a canvas does not know: resolved through an element.
function resolved(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  probe.hidden = true;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found || color(name);
}

function useTheme() {
  const [theme, setTheme] = useState(0);
  useEffect(() => {
    const media = matchMedia("(prefers-color-scheme: dark)");
    const turn = () => setTheme((number) => number + 1);
    media.addEventListener("change", turn);
    addEventListener("pace-theme", turn);
    return () => {
      media.removeEventListener("change", turn);
      removeEventListener("pace-theme", turn);
    };
  }, []);
  return theme;
}

// The range of an axis from a least value, with room above; where all values are the same, it is not empty.
function span(low, high) {
  const long = high - low;
  return [low, long > 1e-9 * Math.abs(high) ? high + 0.06 * long : low + (Math.abs(low) || 1)];
}

// `series` are [{label, values, band: [low, high]?, dash?, steps?}] over `x`; `marks` are vertical lines [{at, label}].
export function Curves({ label, x, xLabel, yLabel, series, height = 300, logX = false, logY = false, time = false, whole = false, marks = [], least = 0, unit: unitName = "" }) {
  const frame = useRef(null);
  const theme = useTheme();
  useEffect(() => {
    const unit = Math.max(parseFloat(getComputedStyle(document.documentElement).fontSize) / 15, 0.9);
    const font = `${Math.round(12 * unit)}px system-ui, sans-serif`;
    const ink = resolved("--muted");
    const grid = { stroke: resolved("--line"), width: 1 };
    const axis = { stroke: ink, grid, ticks: grid, font, labelFont: font, labelSize: 20 * unit };
    const shown = [{ label: xLabel }];
    const data = [x];
    const bands = [];
    series.forEach((each, number) => {
      const stroke = resolved(`--curve-${number % 6}`);
      data.push(each.values);
      shown.push({ label: each.label, stroke, width: 2, points: { show: x.length < 60, size: 6, fill: stroke }, dash: each.dash, ...(each.steps ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}), value: (_, value) => compact(value) });
      if (each.band) {
        const at = data.length;
        data.push(each.band[1], each.band[0]);
        shown.push({ label: "high", stroke: "transparent", points: { show: false } }, { label: "low", stroke: "transparent", points: { show: false } });
        bands.push({ series: [at, at + 1], fill: stroke.replace("rgb(", "rgba(").replace(")", ", 0.18)") });
      }
    });
    const options = {
      width: Math.max(frame.current.clientWidth, 200), height: height * unit, series: shown, bands, legend: { show: false },
      scales: { x: { time, distr: logX ? 3 : 1 }, y: logY ? { distr: 3 } : { range: (_, low, high) => span(Math.min(least, low), high) } },
      axes: [{ ...axis, label: xLabel, ...(time ? { values: (_, ticks) => moments(ticks), space: 96 * unit } : {}), ...(whole ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] } : {}) }, { ...axis, label: yLabel, size: 62 * unit, values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : `${compact(tick)}${unitName}`)) }],
      cursor: { drag: { x: false, y: false }, y: false },
      hooks: { setCursor: [(plot) => tell(plot)], draw: [(plot) => drawMarks(plot)] },
    };
    const drawMarks = ({ ctx, bbox, valToPos }) => {
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = ink;
      ctx.font = `${Math.round(12 * unit * devicePixelRatio)}px system-ui, sans-serif`;
      ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
      for (const { at, label: text } of marks) {
        const left = valToPos(at, "x", true);
        if (!(left >= bbox.left && left <= bbox.left + bbox.width)) continue;
        ctx.beginPath();
        ctx.moveTo(left, bbox.top);
        ctx.lineTo(left, bbox.top + bbox.height);
        ctx.stroke();
        const before = left > bbox.left + bbox.width / 2;
        ctx.textAlign = before ? "right" : "left";
        ctx.textBaseline = "top";
        ctx.fillText(text, left + (before ? -6 : 6) * devicePixelRatio, bbox.top + 4 * devicePixelRatio);
      }
      ctx.restore();
    };
    const note = frame.current.parentElement.querySelector(".reading");
    const tell = (plot) => {
      const at = plot.cursor.idx;
      if (at == null) { note.textContent = ""; return; }
      const where = time ? moment(x[at] * 1000) : compact(x[at]);
      note.textContent = `${xLabel} ${where}: ${series.map((each) => `${each.label} ${compact(each.values[at])}${each.values[at] == null ? "" : unitName}${each.band && each.band[0][at] != null ? ` (${compact(each.band[0][at])} to ${compact(each.band[1][at])})` : ""}`).join(", ")}`;
    };
    const plot = new uPlot(options, data, frame.current);
    plot.root.setAttribute("aria-hidden", "true");
    const observer = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width && width !== plot.width) plot.setSize({ width, height: height * unit });
    });
    observer.observe(frame.current);
    return () => {
      observer.disconnect();
      plot.destroy();
    };
  }, [JSON.stringify(x), JSON.stringify(series), JSON.stringify(marks), theme, least, unitName, logX, logY, xLabel, yLabel]);
  return html`<figure class="curves" aria-label=${label}>
    <ul class="legend">${series.map((each, number) => html`<li><i class=${`line c${number % 6} ${each.dash ? "dashed" : ""}`}></i>${each.label}${each.band ? " with its error band" : ""}</li>`)}</ul>
    <div ref=${frame} class="plot"></div>
    <p class="reading faint" aria-hidden="true"></p>
  </figure>`;
}
