// Hands a trace to Perfetto's page, which opens in a window of its own: the trace goes from window to window.
const PERFETTO = "https://ui.perfetto.dev";

// `load` returns the trace; the window opens first, because browsers open none long after the click.
export async function openInPerfetto(load, title) {
  const perfetto = window.open(PERFETTO);
  if (!perfetto) throw new Error("The browser opened no window: allow it for this page, or download the trace.");
  const buffer = await (await load()).arrayBuffer();
  await new Promise((resolve, reject) => {
    const asking = setInterval(() => perfetto.postMessage("PING", PERFETTO), 100);
    const stop = () => {
      clearInterval(asking);
      clearTimeout(given_up);
      removeEventListener("message", give);
    };
    const given_up = setTimeout(() => { stop(); reject(new Error("Perfetto's page did not answer: download the trace and open it there.")); }, 30_000);
    const give = (event) => {
      if (event.origin !== PERFETTO || event.data !== "PONG") return;
      stop();
      perfetto.postMessage({ perfetto: { buffer, title } }, PERFETTO);
      resolve();
    };
    addEventListener("message", give);
  });
}
