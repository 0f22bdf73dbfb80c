// Loads what a view needs: what is superseded is aborted, and what failed with the service is loaded when it is back.
import { useEffect, useState } from "./elements.js";
import { onReachable } from "./service.js";

export function useLoaded(load, needs) {
  const [round, setRound] = useState(0);
  const [state, setState] = useState({ busy: true });
  useEffect(() => {
    const control = new AbortController();
    let lost = false;
    setState((before) => ({ value: before.value, busy: true, task: null }));
    const progress = (task) => { if (!control.signal.aborted) setState((now) => ({ ...now, task })); };
    (async () => load(control.signal, progress))().then(
      (value) => { if (!control.signal.aborted) setState({ value, busy: false }); },
      (error) => {
        if (control.signal.aborted) return;
        lost = error.kind === "unreachable";
        setState((before) => ({ value: before.value, error, busy: false }));
      },
    );
    const forget = onReachable((now) => { if (now && lost) setRound((number) => number + 1); });
    return () => {
      control.abort();
      forget();
    };
  }, [...needs, round]);
  return { ...state, again: () => setRound((number) => number + 1) };
}

// Loads again a while after each answer, and not while nobody looks.
export function useRefreshed({ busy, again }, delay) {
  useEffect(() => {
    if (busy) return undefined;
    const look = () => { if (!document.hidden) again(); };
    const timer = setTimeout(() => {
      look();
      document.addEventListener("visibilitychange", look);
    }, delay);
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, [busy, delay]);
}

export function useSettled(value, delay = 300) {
  const [settled, setSettled] = useState(value);
  const text = JSON.stringify(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), delay);
    return () => clearTimeout(timer);
  }, [text]);
  return settled;
}
