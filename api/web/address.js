// What is shown, as the part of the address behind "#": a link reproduces the view.
import { useEffect, useState } from "./elements.js";
import { PACKS } from "./packs.js";

export const TABS = ["start", "result", "compare", "what-if", "order", ...PACKS.map(({ view }) => view), "jobs", "keys"];

export function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const tab = TABS.includes(path) ? path : "start";
  return { tab, values: Object.fromEntries(new URLSearchParams(query)) };
}

export function linkTo(tab, values = {}) {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#${tab}${query ? `?${query}` : ""}`;
}

export function goTo(tab, values) {
  location.hash = linkTo(tab, values);
}

// Changes some of the values of the current tab without a new entry in the browser's history.
export function adjust(changes) {
  const { tab, values } = readAddress();
  history.replaceState(null, "", linkTo(tab, { ...values, ...changes }));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useAddress() {
  const [address, setAddress] = useState(readAddress);
  useEffect(() => {
    const follow = () => setAddress(readAddress());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return address;
}

// Names the browser's tab by what a view shows: with many tabs open, "Result" would not tell them apart.
export function useTitle(name, view) {
  useEffect(() => { if (name) document.title = `${name} – ${view} – PACE`; }, [name, view]);
}
