// The list of events, newest first; a decision explains its inputs, prediction and outcome.

import { attribute, h, keyed, text } from "./dom.js";
import { LANES, inLanes } from "./event_kinds.js";
import { clock, plain } from "./format.js";
import { on, put, state } from "./store.js";

const SHOWN = 200;
const RETAINED = 1000;

export function events(list, filter) {
  filter.append(
    h("option", { value: "" }, "all"),
    ...LANES.filter(([lane]) => lane !== "checkpoint").map(([lane, name]) =>
      h("option", { value: lane }, name.toLowerCase()),
    ),
  );
  const draw = () => {
    const wanted = state.events
      .filter(
        (event) => event.kind !== "outcome" && (filter.value === "" || event.lane === filter.value),
      )
      .slice(-SHOWN)
      .reverse();
    keyed(list, wanted, (event) => event.number, made, update);
    attribute(list, "class", wanted.length === 0 ? "events empty" : "events");
  };
  filter.addEventListener("change", draw);
  on(["events"], draw);
}

/** Add events to those that are known; an outcome completes its decision. */
export function addEvents(found) {
  const byNumber = new Map(state.events.map((event) => [event.number, event]));
  for (const event of found) {
    byNumber.set(event.number, event);
    const decided = event.kind === "outcome" ? byNumber.get(event.facts.decision) : undefined;
    if (decided?.decision) {
      const { after, errors } = event.facts;
      byNumber.set(decided.number, {
        ...decided,
        decision: { ...decided.decision, after, errors },
      });
    }
  }
  const sorted = [...byNumber.values()].sort((one, other) => one.number - other.number);
  put({ events: inLanes(sorted.slice(-RETAINED)) });
}

function made(event) {
  const item = h(
    "li",
    { id: `event-${event.number}`, class: `event ${event.lane}`, tabindex: "-1" },
    h(
      "p",
      {},
      h("time", { datetime: new Date(event.time * 1000).toISOString() }, clock(event.time)),
      h("span", { class: "kind" }, event.kind.replace("-", " ")),
      h("span", { class: "epoch" }, `epoch ${event.epoch}`),
    ),
    h("p", { class: "text" }, event.text),
  );
  if (event.decision)
    item.append(h("details", {}, h("summary", {}, "Why, and what came of it"), h("div")));
  return item;
}

function update(item, event) {
  if (!event.decision || item.shownDecision === event.decision) return;
  item.shownDecision = event.decision;
  item.querySelector("details > div").replaceChildren(explained(event.decision));
}

function explained({ policy, actions, is_dry_run: isDryRun, inputs, predicted, after, errors }) {
  const names = Object.keys(inputs);
  const cell = (figures, name) =>
    h("td", {}, figures === null || !(name in figures) ? "" : shown(figures[name]));
  return h(
    "div",
    {},
    h("p", {}, `Policy ${policy}${isDryRun ? ", as a dry run: nothing was changed." : "."}`),
    h("ul", {}, ...actions.map((action) => h("li", {}, action))),
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ...["Figure", "Input", "Predicted", "Outcome", "Error"].map((name) =>
            h("th", { scope: "col" }, name),
          ),
        ),
      ),
      h(
        "tbody",
        {},
        ...names.map((name) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, name.replaceAll("_", " ")),
            cell(inputs, name),
            cell(predicted, name),
            cell(after, name),
            cell(errors, name),
          ),
        ),
      ),
    ),
    after === null ? h("p", {}, "The outcome shows after a few epochs.") : null,
  );
}

const shown = (value) => (typeof value === "string" ? value.slice(0, 8) : plain(value));

/** Bring an event into view. */
export function reveal(number) {
  const item = document.getElementById(`event-${number}`);
  if (item === null) return;
  const details = item.querySelector("details");
  if (details !== null) details.open = true;
  item.focus();
  item.scrollIntoView({ block: "nearest" });
}

/** What a screen reader is told about an event; only what a person would interrupt another for. */
export function announce(place, event) {
  if (["lost", "scale", "drain", "decision"].includes(event.kind)) text(place, event.text);
}
