// API keys of the tenant, for its admins, and what the tenant has in use.
import { html, useState } from "./elements.js";
import { useLoaded } from "./loading.js";
import { bytes, count, moment } from "./numbers.js";
import { Confirm, Copyable, Empty, Field, ProblemNote, Table, Waiting } from "./parts.js";
import { getJson, postJson, remove } from "./service.js";

export function Keys({ usage, again }) {
  return html`<${Usage} usage=${usage} again=${again} />
    ${usage && (usage.scopes.includes("admin") ? html`<${List} own=${usage.key_id} />`
      : html`<${Empty} title="Keys are for admins"><p>This key may ${usage.scopes.join(" and ")}.</p><//>`)}`;
}

function Usage({ usage }) {
  if (!usage) return null;
  const share = usage.max_stored_bytes ? usage.stored_bytes / usage.max_stored_bytes : null;
  return html`<section class="card" aria-labelledby="usage-title">
    <h2 id="usage-title">In use by <span class="name">${usage.tenant}</span></h2>
    <dl class="numbers">
      <div><dt>Stored</dt><dd>${bytes(usage.stored_bytes)} <span class="faint">${share === null ? "without a limit" : `of ${bytes(usage.max_stored_bytes)}`}</span>
        ${share !== null && html`<meter aria-label="Stored" min="0" max="1" high="0.8" value=${share}></meter>`}</dd></div>
      <div><dt>Waiting tasks</dt><dd>${count(usage.num_queued)} <span class="faint">of ${count(usage.max_queued)}</span></dd></div>
      <div><dt>Running tasks</dt><dd>${count(usage.num_running)} <span class="faint">of ${count(usage.max_running)}</span></dd></div>
      <div><dt>This key may</dt><dd>${usage.scopes.join(", ")}</dd></div>
    </dl>
  </section>`;
}

function List({ own }) {
  const keys = useLoaded((signal) => getJson("v1/keys?limit=1000", signal), []);
  const [made, setMade] = useState(null);
  const [failure, setFailure] = useState(null);
  const [asking, setAsking] = useState(null);
  const create = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const document = { name: form.get("name"), scopes: ["read", "submit", "admin"].filter((scope) => form.get(scope)) };
    if (form.get("expires")) document.expires_at = new Date(form.get("expires")).toISOString();
    setFailure(null);
    try {
      setMade(await postJson("v1/keys", document));
      event.target.reset();
      keys.again();
    } catch (error) {
      setFailure(error);
    }
  };
  const revoke = async () => {
    const { id } = asking;
    setAsking(null);
    setFailure(null);
    try {
      await remove(`v1/keys/${id}`);
    } catch (error) {
      setFailure(error);
    }
    keys.again();
  };
  const state = (key) => (key.revoked_at ? "revoked" : key.expires_at && Date.parse(key.expires_at) < Date.now() ? "expired" : "valid");
  const columns = [
    { name: "name", title: "Name", value: ({ name }) => name, show: ({ id, name }) => html`<span class="name">${name}</span> ${id === own ? html`<span class="faint">this one</span>` : ""}` },
    { name: "id", title: "Id", value: ({ id }) => id, show: ({ id }) => html`<code>${id}</code>` },
    { name: "scopes", title: "Scopes", value: ({ scopes }) => scopes.join(", ") },
    { name: "state", title: "State", value: state },
    { name: "created", moment: true, title: "Created", value: (key) => key.created_at, show: (key) => moment(key.created_at) },
    { name: "expires", moment: true, title: "Ends", value: (key) => key.expires_at, show: (key) => (key.expires_at ? moment(key.expires_at) : "never") },
    { name: "used", moment: true, title: "Used last", value: (key) => key.last_used_at, show: (key) => moment(key.last_used_at) },
    { name: "revoke", title: "", show: (key) => (state(key) === "valid" ? html`<button type="button" class="danger" aria-label=${`Revoke ${key.name}`} onClick=${() => setAsking(key)}>Revoke</button>` : "") },
  ];
  return html`<section class="card" aria-labelledby="new-title">
    <h2 id="new-title">A new key</h2>
    <form onSubmit=${create}>
      <div class="fields">
        <${Field} id="key-name" label="Name"><input id="key-name" name="name" required maxlength="200" autocomplete="off" /><//>
        <${Field} id="key-expires" label="Ends (empty for never)"><input id="key-expires" name="expires" type="datetime-local" /><//>
      </div>
      <fieldset class="checks"><legend>May</legend>
        <label><input type="checkbox" name="read" defaultChecked />read</label><label><input type="checkbox" name="submit" defaultChecked />submit</label><label><input type="checkbox" name="admin" />admin</label></fieldset>
      <button class="chief" type="submit">Create key</button>
    </form>
    <${ProblemNote} error=${failure} />
    ${made && html`<div class="note good-note" role="status"><strong>The key of ${made.name}</strong>
      <p>Copy it now: it is shown only once.</p>
      <${Copyable} text=${made.token} label="New key" />
      <button type="button" onClick=${() => setMade(null)}>I have it</button></div>`}
  </section>
  <section class="card" aria-labelledby="keys-title">
    <h2 id="keys-title">Keys</h2>
    <${ProblemNote} error=${keys.error} retry=${keys.again} />
    ${!keys.value && !keys.error && html`<${Waiting} what="keys" rows=${4} />`}
    ${keys.value && !keys.value.items.length && html`<${Empty} title="There are no keys"><p>This service listens on loopback only and needs no key.</p><//>`}
    ${keys.value?.items.length > 0 && html`<${Table} caption="Keys" first="created" descending=${true} rows=${keys.value.items} rowKey=${({ id }) => id} columns=${columns} pageSize=${20} />`}
  </section>
  ${asking && html`<${Confirm} title=${`Revoke the key of ${asking.name}?`} action="Revoke" onYes=${revoke} onNo=${() => setAsking(null)}>
    <p>${asking.id === own ? "This page uses it: you will need another key. " : ""}Whoever uses it is refused within five seconds.</p><//>`}`;
}
