"use strict";

const REFRESH_MS = 1500;
const STATUSES = ["RUNNING", "PENDING", "COMPLETED", "FAILED", "CANCELLING", "CANCELLED"];
const element = (id) => document.getElementById(id);

function text(tag, content, className) {
  const node = document.createElement(tag);
  node.textContent = content; // never as HTML: names, params and errors are anybody's text
  if (className) node.className = className;
  return node;
}

function row(run) {
  const line = document.createElement("tr");
  const open = text("button", run.run_id.slice(-12));
  open.title = run.run_id;
  open.addEventListener("click", () => show(run.run_id));
  const id = text("td", "", "id");
  id.append(open);
  line.append(
    text("td", run.status, run.status),
    text("td", run.flow_name),
    id,
    text("td", run.worker_id || ""),
    text("td", run.tasks_total ? `${run.tasks_done}/${run.tasks_total}` : ""),
    text("td", new Date(run.updated_at * 1000).toLocaleString()),
  );
  return line;
}

async function fetched(path) {
  const response = await fetch(path);
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new Error(body.message || `HTTP ${response.status}`);
  }
  return response;
}

function showCounts(metrics) {
  const items = STATUSES.map((status) => {
    const found = metrics.match(new RegExp(`^pyoco_runs_total\\{status="${status}"\\} (\\d+)`, "m"));
    return text("li", `${status} ${found ? found[1] : 0}`, status);
  });
  element("counts").replaceChildren(...items);
}

function notice(message) {
  element("notice").textContent = message;
  element("notice").hidden = !message;
}

async function show(runId) {
  const [run, logs] = await Promise.all([
    fetched(`/runs/${runId}?include=records`).then((r) => r.json()),
    fetched(`/runs/${runId}/logs`).then((r) => r.json()),
  ]);
  const printed = logs.lines.map((line) => `${line.task || "-"} | ${line.text}`).join("");
  element("detail-title").textContent = `${run.flow_name} ${runId}`;
  element("detail-body").textContent = `${JSON.stringify(run, null, 2)}\n\n${printed}`;
  element("detail").hidden = false;
  element("detail").scrollIntoView({ behavior: "smooth" });
}

async function refresh() {
  try {
    const [runs, metrics] = await Promise.all([
      fetched("/runs?limit=50").then((r) => r.json()),
      fetched("/metrics").then((r) => r.text()),
    ]);
    element("runs").replaceChildren(...runs.map(row));
    showCounts(metrics);
    notice(runs.length ? "" : "No runs yet. Submit one: POST /runs, or pyoco-client submit.");
  } catch (error) {
    notice(`The server does not answer as it should: ${error.message}`);
  }
  setTimeout(refresh, REFRESH_MS);
}

refresh();
