// The timeline: a lane for each kind of event, over the time range of the charts.

import { span } from "./charts.js";
import { attribute, calmly, h, keyed, text } from "./dom.js";
import { LANES } from "./event_kinds.js";
import { reveal } from "./events.js";
import { clock } from "./format.js";
import { on, state } from "./store.js";

export function timeline(place) {
  const lanes = new Map(LANES.map(([lane]) => [lane, h("div", { class: `lane ${lane}` })]));
  const ends = [h("span"), h("span"), h("span")];
  for (const [lane, name] of LANES)
    place.append(h("span", { class: "lane-name", id: `lane-${lane}` }, name), lanes.get(lane));
  place.append(h("span"), h("p", { class: "axis", "aria-hidden": "true" }, ...ends));
  const draw = calmly(450, () => {
    const [from, to] = span();
    const share = (time) => (time - from) / (to - from);
    const shown = [...state.events, ...checkpoints(from)].filter(
      (event) => event.time >= from && event.kind !== "outcome",
    );
    for (const [lane, element] of lanes) {
      const marks = shown.filter((event) => event.lane === lane);
      keyed(
        element,
        marks,
        (event) => event.number,
        lane === "checkpoint" ? dot : button,
        (mark, event) => {
          mark.style.setProperty("--at", Math.min(1, share(event.time)).toFixed(4));
          if (lane !== "checkpoint") attribute(mark, "title", `${clock(event.time)} ${event.text}`);
        },
      );
      attribute(element, "role", "group");
      attribute(element, "aria-labelledby", `lane-${lane}`);
    }
    text(ends[0], clock(from));
    text(ends[1], clock((from + to) / 2));
    text(ends[2], clock(to));
  });
  on(["events", "history", "range"], draw);
}

const dot = () => h("i", { "aria-hidden": "true" });

function button(event) {
  return h("button", {
    type: "button",
    "aria-label": `${clock(event.time)}, ${event.text}`,
    onclick: () => reveal(event.number),
  });
}

/** Checkpoints, as the age of the newest one tells: it was written where the age falls. */
function checkpoints(from) {
  const { times, series } = state.history;
  const ages = series.checkpoint_age ?? [];
  const found = [];
  let before = null;
  times.forEach((time, at) => {
    if (ages[at] === null || ages[at] === undefined) return;
    const written = time - ages[at];
    if (written >= from && (before === null || written - before > 0.5)) {
      found.push({
        number: `at ${written.toFixed(1)}`,
        time: written,
        kind: "checkpoint",
        lane: "checkpoint",
      });
    }
    before = written;
  });
  return found;
}
