// Small parts that the tabs share: problems, progress, tables, questions, files.
import { linkTo } from "./address.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./elements.js";

// Each line of a problem's detail begins with the field that it is about.
export function ProblemNote({ error, retry }) {
  if (!error || error.name === "AbortError") return null;
  const lines = error.message.split("\n").slice(0, 20);
  const unexpected = !error.title;
  return html`<div class="note bad" role="alert">
    <strong>${error.title || "The page failed"}</strong>
    ${lines.map((line) => {
      const [, field, rest] = line.match(/^([\w."/ -]{1,80}?(?:: [\w."/ -]{1,60})*?): (.+)$/) || [];
      return html`<p>${field && !unexpected ? html`<code>${field}</code> ${rest}` : line}</p>`;
    })}
    ${error.requestId && html`<p class="faint">Request ${error.requestId}</p>`}
    <div class="row">${retry && html`<button type="button" onClick=${retry}>Try again</button>`}
      ${error.status === 404 && html`<a class="button" href=${linkTo("start")}>What is stored</a> <a class="button" href=${linkTo("jobs")}>Jobs</a>`}</div>
  </div>`;
}

export function Warnings({ lines }) {
  if (!lines?.length) return null;
  return html`<div class="note warn" role="status">
    <strong>Notes on this profile</strong>
    <ul>${lines.map((line) => html`<li>${line}</li>`)}</ul>
  </div>`;
}

export function Progress({ task, what, cancel }) {
  if (!task) return null;
  const { num_done: done, num_total: total, state } = task;
  const text = state === "queued" ? `${what}: waiting for a free worker` : total ? `${what}: ${done || 0} of ${total}` : `${what}…`;
  return html`<div class="progress" role="status">
    <span>${text}</span>
    ${total && state === "running"
      ? html`<progress aria-label=${what} max=${total} value=${done || 0}></progress>`
      : html`<progress aria-label=${what}></progress>`}
    ${cancel && html`<button type="button" onClick=${cancel}>Cancel</button>`}
  </div>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${children}</div>`;
}

// What is shown while the first answer is awaited: as high as what comes, so that nothing jumps.
export function Waiting({ what, rows = 3 }) {
  return html`<div class="waiting" role="status"><span class="hidden">Loading ${what}…</span>${Array.from({ length: rows }, () => html`<i></i>`)}</div>`;
}

// A table that sorts by its columns: {name, title, value, show, numeric}. Where its rows are one page of many,
// `onOrder` has the service sort, by columns that have `sorts`: the way that they go first.
export function Table({ caption, columns, rows, first, descending = false, pageSize = 50, rowKey, onOrder }) {
  const [chosen, setOrder] = useState({ by: first, descending });
  const order = onOrder ? { by: first, descending } : chosen;
  const [page, setPage] = useState(0);
  const sorted = useMemo(() => {
    const column = columns.find(({ name }) => name === order.by);
    if (!column || onOrder) return rows;
    const way = order.descending ? -1 : 1;
    const keyed = rows.map((row, at) => [column.value(row), at, row]);
    keyed.sort(([a, i], [b, j]) => (a == null) - (b == null) || (a < b ? -way : a > b ? way : i - j));
    return keyed.map(([, , row]) => row);
  }, [rows, order.by, order.descending, columns]);
  const pages = Math.max(1, Math.ceil(rows.length / pageSize));
  const at = Math.min(page, pages - 1);
  const sortBy = ({ name, sorts }) => {
    if (onOrder) return onOrder({ by: name, descending: order.by === name ? !order.descending : sorts === "descending" });
    setOrder((now) => ({ by: name, descending: now.by === name ? !now.descending : false }));
    setPage(0);
    return undefined;
  };
  return html`<div class="table">
    <div class="scroll" role="region" aria-label=${caption} tabindex="0">
      <table>
        <caption class="hidden">${caption}</caption>
        <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.numeric ? "number" : ""}
          aria-sort=${order.by === column.name ? (order.descending ? "descending" : "ascending") : undefined}>
          ${(onOrder ? column.sorts : column.value)
            ? html`<button type="button" class="sort" onClick=${() => sortBy(column)}>${column.title}<span
                aria-hidden="true">${order.by === column.name ? (order.descending ? " ↓" : " ↑") : ""}</span></button>`
            : column.title || html`<span class="hidden">Actions</span>`}
        </th>`)}</tr></thead>
        <tbody>${sorted.slice(at * pageSize, (at + 1) * pageSize).map((row, number) => html`<tr
          key=${rowKey ? rowKey(row) : number}>${columns.map((column) => html`<td class=${column.numeric ? "number" : column.moment ? "moment" : column.title ? "" : "action"}>
          ${column.show ? column.show(row) : column.value(row)}</td>`)}</tr>`)}</tbody>
      </table>
    </div>
    ${pages > 1 && html`<div class="pager">
      <button type="button" disabled=${at === 0} onClick=${() => setPage(at - 1)}>Previous</button>
      <span role="status">${caption}: page ${at + 1} of ${pages}</span>
      <button type="button" disabled=${at === pages - 1} onClick=${() => setPage(at + 1)}>Next</button>
    </div>`}
  </div>`;
}

// Asks before something that cannot be undone.
export function Confirm({ title, children, action, onYes, onNo }) {
  const dialog = useRef(null);
  // Before the next key press, which would go to what lies under the dialog. Closed, it gives the focus back.
  useLayoutEffect(() => {
    const { current } = dialog;
    current.showModal();
    return () => current.close();
  }, []);
  return html`<dialog ref=${dialog} aria-labelledby="confirm-title" onCancel=${(event) => { event.preventDefault(); onNo(); }}>
    <h2 id="confirm-title">${title}</h2>
    ${children}
    <div class="row end">
      <button type="button" onClick=${onNo}>Keep</button>
      <button type="button" class="danger" onClick=${onYes}>${action}</button>
    </div>
  </dialog>`;
}

export function Field({ label, hint, id, children }) {
  return html`<div class="field">
    <label for=${id}>${label}</label>
    ${children}
    ${hint && html`<span class="faint" id=${`${id}-hint`}>${hint}</span>`}
  </div>`;
}

// An input that keeps what is typed until it is left, however often the view around it is drawn anew meanwhile.
// One that hands nothing over (a form reads it) keeps it until the value given from outside changes.
export function Entry({ value, onInput, onChange, ...rest }) {
  const [typed, setTyped] = useState(null);
  const input = useRef();
  useEffect(() => {
    if (document.activeElement !== input.current) setTyped(null);
  }, [value]);
  const type = (event) => {
    setTyped(event.target.value);
    onInput?.(event);
  };
  return html`<input ...${rest} ref=${input} value=${typed ?? value} onInput=${type} onChange=${onChange}
    onBlur=${onInput || onChange ? () => setTyped(null) : undefined} />`;
}

// Hands over what was dropped or chosen: a list of files where `several` may come, else the first.
export function DropFile({ id, label, hint, onFile, busy, several = false }) {
  const [over, setOver] = useState(false);
  const give = (list) => {
    const files = [...list];
    if (files.length && !busy) onFile(several ? files : files[0]);
  };
  const take = (event) => {
    event.preventDefault();
    setOver(false);
    give(event.dataTransfer.files);
  };
  return html`<div class=${`drop ${over ? "over" : ""}`} onDragOver=${(event) => { event.preventDefault(); setOver(true); }}
    onDragLeave=${() => setOver(false)} onDrop=${take}>
    <label for=${id}>${label}</label>
    <input id=${id} type="file" multiple=${several} disabled=${busy} aria-describedby=${`${id}-hint`}
      onChange=${(event) => { give(event.target.files); event.target.value = ""; }} />
    <span class="faint" id=${`${id}-hint`}>${hint}</span>
  </div>`;
}

const contentOf = (file) => (/\.gz$/i.test(file.name) ? file.stream().pipeThrough(new DecompressionStream("gzip")) : file.stream());

// The first kilobytes of a file, which tell what it is; traces are too large to be read for that.
export async function beginning(file) {
  const reader = contentOf(file).getReader();
  try {
    const { value } = await reader.read();
    return new TextDecoder().decode(value?.subarray(0, 4096));
  } catch {
    return "";
  } finally {
    reader.cancel().catch(() => {});
  }
}

// What a file of JSON holds, compressed by gzip or not.
export async function readJson(file) {
  try {
    return JSON.parse(await new Response(contentOf(file)).text());
  } catch {
    throw Object.assign(new Error(`${file.name} is not JSON`), { title: "Invalid file" });
  }
}

export function save(name, content, type = "application/json") {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function csv(header, rows) {
  const cell = (value) => (/[",\n]/.test(String(value ?? "")) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
  return [header, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

export function Copyable({ text, label }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
      setTimeout(() => setCopied(false), 2000);
    } catch {
      // no clipboard without a secure context: the text can be marked
    }
  };
  return html`<div class="copyable">
    <pre tabindex="0" aria-label=${label}><code>${text}</code></pre>
    <button type="button" onClick=${copy}>${copied ? "Copied" : "Copy"}</button>
  </div>`;
}
