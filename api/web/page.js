// The page: who asks, which tab, and what is said when the service is gone.
import { html, render, useEffect, useErrorBoundary, useLayoutEffect, useRef, useState } from "./elements.js";
import { TABS, linkTo, useAddress } from "./address.js";
import { Compare } from "./compare.js";
import { Jobs } from "./jobs.js";
import { Keys } from "./keys.js";
import { Order } from "./order.js";
import { zone } from "./numbers.js";
import { PACKS } from "./packs.js";
import { Field, ProblemNote } from "./parts.js";
import { Result } from "./result.js";
import { getJson, getKey, onReachable, setKey } from "./service.js";
import { Start } from "./start.js";
import { WhatIf } from "./what-if.js";

const VIEWS = { start: Start, result: Result, compare: Compare, "what-if": WhatIf, order: Order, jobs: Jobs, keys: Keys };
const NAMES = { start: "Start", result: "Result", compare: "Compare", "what-if": "What if", order: "Order", jobs: "Jobs", keys: "Keys" };
// Views of packs: the service makes packs.js.
await Promise.all(PACKS.map(async ({ view, title, module }) => {
  VIEWS[view] = (await import(module)).default;
  NAMES[view] = title;
}));

function Page() {
  const { tab, values } = useAddress();
  const [usage, setUsage] = useState(null);
  const [error, setError] = useState(null);
  const [reachable, setReachable] = useState(true);
  const [round, setRound] = useState(0);
  const main = useRef(null);
  const lost = useRef(false);
  useEffect(() => onReachable((now) => {
    setReachable(now);
    if (now && lost.current) setRound((number) => number + 1);
    lost.current = !now;
  }), []);
  useEffect(() => {
    const needed = ({ detail }) => { setUsage(null); setError(detail); };
    addEventListener("pace-key-needed", needed);
    return () => removeEventListener("pace-key-needed", needed);
  }, []);
  useEffect(() => {
    let current = true;
    getJson("v1/usage").then(
      (found) => { if (current) { setUsage(found); setError(null); } },
      (problem) => { if (current && problem.kind !== "unreachable") { setError(problem); setUsage(null); } },
    );
    return () => { current = false; };
  }, [round, tab === "keys"]);
  const first = useRef(true);
  const named = values.job && tab === "jobs" ? values.job : null;
  // Before what a view shows names the tab more closely.
  useLayoutEffect(() => { document.title = [named, NAMES[tab], "PACE"].filter(Boolean).join(" – "); }, [tab, named]);
  useEffect(() => {
    // Someone who hears the page must learn that it changed; at the first time it begins at its top.
    if (!first.current) main.current?.focus({ preventScroll: true });
    first.current = false;
    // On a phone the tabs scroll sideways. After scrollIntoView(), Tab would go on from there.
    const here = document.querySelector("nav [aria-current]");
    const bar = here?.closest("ul");
    if (bar) bar.scrollLeft += here.getBoundingClientRect().left - bar.getBoundingClientRect().left - bar.clientWidth / 2 + here.clientWidth / 2;
    scrollTo(0, 0);
  }, [tab]);
  const enter = (key) => {
    setKey(key);
    setError(null);
    setUsage(null);
    setRound((number) => number + 1);
  };
  const View = VIEWS[tab];
  const carried = Object.fromEntries(["profile", "clip", "graph"].filter((name) => values[name] !== undefined && ["result", "what-if"].includes(tab)).map((name) => [name, values[name]]));
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to the content</a>
    <header>
      <a class="brand" href=${linkTo("start")}><img src="web/icon.svg" alt="" width="22" height="22" />PACE</a>
      <nav aria-label="Main"><ul>${TABS.map((name) => html`<li><a href=${linkTo(name, ["result", "what-if"].includes(name) ? carried : {})}
        aria-current=${tab === name ? "page" : undefined}>${NAMES[name]}</a></li>`)}</ul></nav>
      <div class="row tight who">
        ${usage && html`<span class="faint name" title="Tenant">${usage.tenant}</span>`}
        ${getKey() && html`<button type="button" onClick=${() => enter("")}>Sign out</button>`}
        <${Theme} />
        <a href="docs">API</a>
      </div>
    </header>
    ${!reachable && html`<p class="banner" role="alert">The service does not answer. The page keeps what it shows, and continues when the service is back.</p>`}
    <main id="main" tabindex="-1" ref=${main}>
      <h1 class="hidden">${NAMES[tab]}</h1>
      ${usage ? html`<${Guarded} key=${`${tab} ${usage.tenant} ${usage.key_id}`} values=${values}><${View} values=${values} usage=${usage} /><//>`
        : error ? html`<${SignIn} error=${error} enter=${enter} />` : html`<p role="status" class="busy">Loading…</p>`}
      ${usage && html`<p class="faint">Times are in ${zone()}.</p>`}
    </main>`;
}

// A view that cannot be drawn says so, and is drawn again when the address changes.
function Guarded({ values, children }) {
  const [error, reset] = useErrorBoundary((fault) => console.error(fault));
  const shown = JSON.stringify(values);
  const failed = useRef(null);
  useEffect(() => {
    if (error && failed.current !== null && failed.current !== shown) reset();
    failed.current = error ? shown : null;
  }, [shown, error]);
  return error ? html`<${ProblemNote} error=${error} retry=${reset} />` : children;
}

function SignIn({ error, enter }) {
  const give = (event) => {
    event.preventDefault();
    enter(new FormData(event.target).get("key").trim());
  };
  const keyed = [401, 403].includes(error.status);
  return html`<section class="card narrow" aria-labelledby="sign-title">
    <h2 id="sign-title">${error.status === 401 ? "This service needs an API key" : "The service refused"}</h2>
    ${(getKey() || error.status !== 401) && html`<${ProblemNote} error=${error} retry=${keyed ? null : () => enter(getKey())} />`}
    ${keyed && html`<form onSubmit=${give}>
      <${Field} id="key" label="API key" hint="Kept in this tab only, until it is closed"><input id="key" name="key" type="password" required autocomplete="off" aria-describedby="key-hint" /><//>
      <button class="chief" type="submit">Go on</button>
    </form>
    <p class="faint">An admin creates keys under Keys, the operator with <code>pace keys create</code>.</p>`}
  </section>`;
}

function Theme() {
  const [theme, setTheme] = useState(localStorage.getItem("pace.theme") || "system");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    if (theme === "system") localStorage.removeItem("pace.theme");
    else localStorage.setItem("pace.theme", theme);
    dispatchEvent(new CustomEvent("pace-theme"));
  }, [theme]);
  return html`<select class="theme" aria-label="Colors" value=${theme} onChange=${(event) => setTheme(event.target.value)}>
    <option value="system">System</option><option value="light">Light</option><option value="dark">Dark</option></select>`;
}

render(html`<${Page} />`, document.getElementById("page"));
