// Numbers in sentences that the chart shows, too.
import { html } from "./elements.js";

// A number that marks its part of the certificate in the chart while it is pointed at.
export function Pointing({ part, text, chart }) {
  const show = () => chart.current?.point("certificate", part);
  const hide = () => chart.current?.select(null);
  return html`<button type="button" class="in-text" title="Marked in the chart" onMouseEnter=${show} onFocus=${show} onMouseLeave=${hide} onBlur=${hide}>${text}</button>`;
}
