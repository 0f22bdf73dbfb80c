// Preact and htm as the rest of the page uses them.
import { h, render, Fragment } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { render, Fragment };
export {
  useCallback, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState,
} from "./vendor/preact-hooks.js";
export const html = htm.bind(h);
