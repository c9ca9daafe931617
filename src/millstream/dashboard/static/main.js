// The page: parts in their places, and what arrives from the run.

import { actions } from "./actions.js";
import { follow, get } from "./api.js";
import { charts } from "./charts.js";
import { calmly, text } from "./dom.js";
import { addEvents, announce, events } from "./events.js";
import { graph } from "./graph.js";
import { hotKeys, nodes } from "./nodes.js";
import { ring } from "./ring.js";
import { extended } from "./series.js";
import { stateBrowser } from "./state.js";
import { status } from "./status.js";
import { on, put, state } from "./store.js";
import { timeline } from "./timeline.js";

const at = (id) => document.getElementById(id);

status(at("status"), at("workflow"), at("notice"));
actions(at("actions"), at("dialog"), at("announcer"));
ring(at("ring"), at("legend"));
charts(at("charts"), at("range"), at("charts-table"));
events(at("events"), at("events-filter"));
timeline(at("timeline"));
graph(at("graph"), at("jobs"));
nodes(at("nodes"));
hotKeys(at("hot-keys"));
stateBrowser(at("state"));
on(["epochs"], calmly(1000, fetchHistory));

try {
  put({ session: await get("/session") });
  const { events: past, newest } = await get("/events");
  addEvents(past);
  follow(newest, {
    onChange: ({ parts }) => put(parts),
    onEvent: (event) => {
      addEvents([event]);
      announce(at("announcer"), event);
    },
    onState: (connection) => put({ connection }),
  });
} catch (problem) {
  at("notice").hidden = false;
  text(at("notice"), problem.message);
}

let isFetching = false;

async function fetchHistory() {
  if (isFetching) return;
  isFetching = true;
  const newer = await get("/history", { since: state.history.times.at(-1) ?? 0 }).catch(() => null);
  isFetching = false;
  if (newer === null || newer.times.length === 0) return;
  put({ history: extended(state.history, newer) });
}
