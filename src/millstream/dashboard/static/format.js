// Figures, sizes and times as text.

const PREFIXES = ["", "k", "M", "G", "T"];
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];
export const NONE = "–";

const isMissing = (value) => value === null || value === undefined || Number.isNaN(value);

function scaled(value, base, names) {
  let rest = Math.abs(value);
  let at = 0;
  while (rest >= base * 0.9995 && at < names.length - 1) {
    rest /= base;
    at += 1;
  }
  const digits =
    at === 0 && Number.isInteger(value) ? 0 : rest >= 99.95 ? 0 : rest >= 9.995 ? 1 : 2;
  return [`${value < 0 ? "−" : ""}${rest.toFixed(digits)}`, names[at]];
}

/** 1234567 as "1.23 M". */
export function count(value) {
  if (isMissing(value)) return NONE;
  const [figure, prefix] = scaled(value, 1000, PREFIXES);
  return prefix ? `${figure} ${prefix}` : figure;
}

/** 1234567 as "1,234,567". */
export const whole = (value) => (isMissing(value) ? NONE : Math.round(value).toLocaleString("en"));

export const rate = (value) => (isMissing(value) ? NONE : `${count(value)}/s`);

export function bytes(value) {
  return isMissing(value) ? NONE : scaled(value, 1024, SIZES).join(" ");
}

/** Seconds as "310 ms", "4.2 s", "3 min 20 s" or "2 h 5 min". */
export function duration(seconds) {
  if (isMissing(seconds)) return NONE;
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(seconds < 9.95 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const percent = (share) =>
  isMissing(share) ? NONE : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;

const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
export const clock = (seconds) => (isMissing(seconds) ? NONE : CLOCK.format(seconds * 1000));

/** The beginning of a node's id, enough to tell it from others. */
export const shortId = (node) => node.slice(0, 8);

/** A figure of unknown meaning, as it stands in a decision. */
export function plain(value) {
  if (isMissing(value)) return NONE;
  if (typeof value === "number") {
    return Number.isInteger(value) || Math.abs(value) >= 1000
      ? whole(value)
      : Number(value.toPrecision(3)).toString();
  }
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}
