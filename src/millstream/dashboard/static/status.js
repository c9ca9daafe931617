// The state of the run and of the connection, in one line; and notices that need attention.

import { attribute, text } from "./dom.js";
import { whole } from "./format.js";
import { on } from "./store.js";

export function status(place, title, notice) {
  on(["run", "connection"], ({ run, connection }) => {
    text(title, run.workflow);
    document.title = `${run.workflow} · Millstream`;
    attribute(place, "class", `status ${connection === "live" ? run.phase : "broken"}`);
    text(place, connection === "live" ? describe(run) : "not connected");
    const word = problem(run, connection);
    if (notice.textContent !== word) text(notice, word);
    attribute(notice, "hidden", word === "");
  });
}

function describe(run) {
  const parts = [run.phase];
  if (run.under_way !== null && run.under_way.tries > 1)
    parts.push(`try ${run.under_way.tries} of epoch ${whole(run.under_way.epoch)}`);
  if (run.lost.length > 0) parts.push(`${whole(run.lost.length)} lost`);
  if (run.incarnation > 1) parts.push(`start ${run.incarnation}`);
  return parts.join(" · ");
}

function problem(run, connection) {
  if (connection === "refused") return "Your session has ended; log in with a new link.";
  if (connection === "broken" && run.phase === "running")
    return "The run does not answer; trying again.";
  if (run.failure !== null) return run.failure;
  return run.waits.join("; ");
}
