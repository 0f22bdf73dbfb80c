// Long lists that the service searches, sorts and hands out page by page.
import { html, useEffect, useState } from "./elements.js";
import { useLoaded } from "./loading.js";
import { getJson } from "./service.js";

// `query` says what is listed; another one begins at its first page. `pager` goes below the table. The entry of the
// browser's history keeps the page, for who comes back.
export function usePages(path, query, what) {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null)).toString();
  const [trail, setTrail] = useState(() => history.state?.[path] || { text, cursors: [] });
  const turnTo = (to) => {
    history.replaceState({ ...history.state, [path]: { text, cursors: to } }, "");
    setTrail({ text, cursors: to });
  };
  const cursors = trail.text === text ? trail.cursors : [];
  const cursor = cursors[cursors.length - 1];
  const loaded = useLoaded((signal) => getJson(`${path}?${text}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`, signal), [text, cursor]);
  // The first page again where what it began with is gone.
  useEffect(() => { if (cursor && loaded.value && !loaded.value.items.length) turnTo([]); }, [loaded.value]);
  const next = loaded.value?.next;
  const pager = (cursors.length > 0 || next) && html`<div class="pager">
    <button type="button" disabled=${!cursors.length} onClick=${() => turnTo(cursors.slice(0, -1))}>Previous ${what}</button>
    <span role="status">Page ${cursors.length + 1}</span>
    <button type="button" disabled=${!next || loaded.busy} onClick=${() => turnTo([...cursors, next])}>Next ${what}</button></div>`;
  return { ...loaded, items: loaded.value?.items || [], pager };
}
