// The state browser: one key, a scan in pages, or the largest values; always of one committed epoch.

import { get } from "./api.js";
import { h, text } from "./dom.js";
import { whole } from "./format.js";
import { on } from "./store.js";

const PAGE = 50;
const MODES = [
  ["get", "Key", [["key", "Key", "text"]]],
  [
    "scan",
    "Scan",
    [
      ["prefix", "Prefix", "text"],
      ["start", "From", "text"],
      ["stop", "To before", "text"],
    ],
  ],
  [
    "top",
    "Top",
    [
      ["n", "How many", "number"],
      ["by", "By part of the value", "text"],
    ],
  ],
];

/** The parameters of a request: what is filled in, and the empty key as well. */
function asked({ mode, job, ...fields }, continuation) {
  if (mode === "get") return { job, key: fields.key };
  if (continuation !== null) return { job, limit: PAGE, continuation };
  const given = Object.entries(fields).filter(([, value]) => value !== "");
  return { job, ...(mode === "scan" ? { limit: PAGE } : {}), ...Object.fromEntries(given) };
}

export function stateBrowser(place) {
  const job = h("select", { name: "job" });
  const fields = h("span", { class: "fields" });
  const modes = MODES.map(([mode, name]) =>
    h(
      "label",
      {},
      h("input", {
        type: "radio",
        name: "mode",
        value: mode,
        checked: mode === "get",
        onchange: () => choose(mode),
      }),
      name,
    ),
  );
  const note = h("p", { class: "note", role: "status" });
  const body = h("tbody");
  const more = h("button", { type: "button", hidden: true }, "Next page");
  const table = h(
    "table",
    { hidden: true },
    h("caption", { class: "unseen" }, "State by key"),
    h(
      "thead",
      {},
      h("tr", {}, h("th", { scope: "col" }, "Key"), h("th", { scope: "col" }, "State")),
    ),
    body,
  );
  const form = h(
    "form",
    {
      class: "query",
      onsubmit: (event) => {
        event.preventDefault();
        find();
      },
    },
    h("label", { class: "field" }, "Job ", job),
    h(
      "fieldset",
      { class: "choice" },
      h("legend", { class: "unseen" }, "What to look up"),
      ...modes,
    ),
    fields,
    h("button", { type: "submit", class: "main" }, "Look up"),
  );
  place.append(
    form,
    note,
    h(
      "div",
      { class: "scroll tall", tabindex: "0", role: "group", "aria-label": "Results" },
      table,
    ),
    more,
  );

  function choose(mode) {
    const [, , wanted] = MODES.find(([name]) => name === mode);
    fields.replaceChildren(
      ...wanted.map(([name, label, type]) =>
        h(
          "label",
          { class: "field" },
          `${label} `,
          h("input", {
            type,
            name,
            autocomplete: "off",
            ...(type === "number" ? { min: 1, max: 10000, value: 10, required: true } : {}),
          }),
        ),
      ),
    );
  }

  async function find(continuation = null) {
    const given = Object.fromEntries(new FormData(form));
    try {
      show(await get(`/state/${given.mode}`, asked(given, continuation)), continuation !== null);
    } catch (problem) {
      text(note, problem.message);
      note.classList.add("wrong");
      more.hidden = true;
    }
  }

  function show(found, isMore) {
    const rows = found.items.map((item) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, item.text),
        h("td", {}, item.found ? h("code", {}, JSON.stringify(item.value)) : "no state"),
      ),
    );
    if (isMore) body.append(...rows);
    else body.replaceChildren(...rows);
    table.hidden = body.childElementCount === 0;
    more.hidden = found.continuation === null;
    more.onclick = () => find(found.continuation);
    note.classList.remove("wrong");
    text(
      note,
      `${whole(body.childElementCount)} ${body.childElementCount === 1 ? "key" : "keys"} of ${found.job}, as committed in epoch ${whole(found.epoch)}`,
    );
  }

  choose("get");
  let names = "";
  on(["jobs"], async ({ jobs }) => {
    const now = jobs.map((each) => each.name).join("\n");
    if (now === names) return;
    names = now;
    const known = await get("/state").catch(() => []);
    job.replaceChildren(
      ...known.map((each) =>
        h(
          "option",
          { value: each.job },
          each.key_type ? `${each.job} (${each.key_type} keys)` : each.job,
        ),
      ),
    );
  });
}
