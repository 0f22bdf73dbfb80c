// Numbers as people read them.

const digits = (value) => (Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2);

export function seconds(value) {
  if (value == null) return "–";
  if (value === 0) return "0 ms";
  for (const [limit, factor, unit] of [[1e-3, 1e6, "µs"], [1, 1e3, "ms"], [Infinity, 1, "s"]]) {
    if (Math.abs(value) < limit) return `${(value * factor).toFixed(digits(value * factor))} ${unit}`;
  }
  return `${value} s`;
}

// Always milliseconds, so that numbers of one column or sum can be compared.
export const milliseconds = (value) => (value == null ? "–" : `${(value * 1e3).toFixed(3)} ms`);

// Of messages, memory and files alike: 10^3, 10^6 and 10^9 bytes.
export function bytes(value) {
  if (value == null) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (value >= 1000 && power < units.length - 1) {
    value /= 1000;
    power += 1;
  }
  return `${power ? value.toFixed(digits(value)) : value} ${units[power]}`;
}

// Of memory, as budgets are given.
export const gigabytes = (value) => (value == null ? "–" : value >= 1e7 ? `${(value / 1e9).toFixed(2)} GB` : `${compact(value / 1e9)} GB`);

export function percent(share, signed = false) {
  if (share == null) return "–";
  const text = (share * 100).toFixed(Math.abs(share) < 0.1 ? 2 : 1);
  // What rounds to nothing has no sign.
  return Number(text) ? `${signed && share > 0 ? "+" : ""}${text} %` : "0.00 %";
}

export const count = (value) => value.toLocaleString("en-US");
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

export function moment(text) {
  if (!text) return "–";
  const at = new Date(text);
  const two = (number) => String(number).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

// The zone of all moments, such as "UTC+01:00 (Europe/Berlin)".
export function zone() {
  const minutes = -new Date().getTimezoneOffset();
  const two = (number) => String(Math.floor(Math.abs(number))).padStart(2, "0");
  return `UTC${minutes < 0 ? "-" : "+"}${two(minutes / 60)}:${two(minutes % 60)} (${Intl.DateTimeFormat().resolvedOptions().timeZone})`;
}

export function compact(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  return Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}
