"""All commands, by name. A test compares them and their options with those of pyoco-server's command."""

from pathlib import Path

from pyoco_client.commands import (
    EXECUTION,
    GRAPH,
    OUTPUT,
    RUN,
    Columns,
    Command,
    Option,
    action_fields,
    apply,
    artifacts,
    called,
    create,
    event_fields,
    logs,
    metrics,
    place,
    preview_schedule,
    put_alert,
    put_channel,
    put_graph,
    put_limit,
    put_schedule,
    read_json,
    read_object,
    read_pairs,
    read_template,
    read_time,
    read_words,
    rerun,
    retry,
    set_flow,
    start_fields,
    submit,
    submit_yaml,
    value,
    watch,
    watch_execution,
    why,
)
from pyoco_client.operations import OPERATION, put_variable, read_value, show_stats, start_bulk, watch_bulk

RUNS = Columns(("run_id",), ("status", "flow_name", "run_id", "tag", "worker_id", "error"))
STARTED = Columns(("run_id", "execution_id", "node_id"))
WHEEL = Columns(("name",))
WORKER = Columns(("worker_id",))
BY_ID = Columns(("id",))
BY_NAME = Columns(("name",))
ACTION = Columns(("key",))

RUN_ID = place("run-id", "Run id.")
EXECUTION_ID = place("execution-id", "Execution id.")
GRAPH_ID = place("graph-id", "Graph id.")
WORKER_ID = place("worker-id", "Worker id.")
JOB_ID = place("job-id", "Retry job id.")
TEMPLATE_ID = place("template-id", "Template id.")
FLOW_NAME = place("name", "Flow name.")
SCHEDULE_ID = place("schedule-id", "Schedule id.")
LIMIT_NAME = place("name", "Limit name.")
NAMED = place("name", "Name: [A-Za-z0-9_-]{1,64}.")
ALERT_NAME = place("name", "Alert name.")
CHANNEL_NAME = place("name", "Channel name.")
DELIVERY_ID = place("delivery-id", "Id of the delivery.")
LETTER_ID = place("letter-id", "Id of the dead letter.")
BULK_ID = place("bulk-id", "Id of the operation.")
ACTION_KEY = place("key", "Action key.")
TAG = Option("tag", "Tag of the worker to run on.")
RECORDS = Option("records", "Include task_records.", is_flag=True)
TIMEOUT = Option("timeout-sec", "Timeout in seconds.", float)
WAIT = (Option("wait", "Wait until the run ends; exit code 0 if it completed.", is_flag=True), TIMEOUT)
KEY = Option("idempotency-key", "Idempotency key; repeated calls with the same key take effect once.")
REASON = Option("reason", "Reason, stored with the execution.")
LIMIT = Option("limit", "Maximum number of entries.", int)
CURSOR = Option("cursor", "next_cursor of the previous page.")
PAGE = (CURSOR, LIMIT)
AFTER = Option("after", "Only events after this sequence number.", int, 0)
QUIET = Option("quiet", "Print nothing.", is_flag=True, short="-q")
START = (
    Option("key", "Idempotency key; an event with a known key starts nothing."),
    Option("year", "Year of the period to process.", int),
    Option("month", "Month of the period to process.", int),
    Option("data", 'JSON object for the flow; available as params["event"].'),
)
FILTERS = (
    Option("status", "Filter by status."),
    Option("flow", "Filter by flow."),
    TAG._replace(help="Filter by tag."),
    Option("parent-run-id", "Filter by the run whose task submitted them."),
    Option("full", "Include all fields.", is_flag=True),
    LIMIT,
)
PARAM = Option("param", "One param as key=value; may be repeated.", is_repeated=True)

TIMING = (
    Option("at", "Do not start before this time, e.g. 2026-12-01T02:00+09:00."),
    Option("delay", "Do not start before this time has passed, e.g. 90, 10m or 1h30m."),
    Option("start-within", "Fail if no worker has started the run in this time."),
    Option("timeout", "Timeout of each try, e.g. 1h."),
    Option("retries", "Try again up to this many times after a failure, with growing pauses.", int),
    Option(
        "priority",
        "Start before other runs that wait for the same tag (high), or after them (low).",
        choices=("high", "normal", "low"),
    ),
)

GROUPS = {
    "executions": "Start, watch and control graph executions.",
    "graphs": "Register and inspect graphs.",
    "flows": "List flows, and set defaults for their runs.",
    "events": "Send workflow events and inspect their results.",
    "queues": "Inspect, pause and resume the queues of tags.",
    "schedules": "Start flows, graphs and templates at their times.",
    "api-keys": "Manage the API keys of your tenant.",
    "alerts": "Send messages when something happens.",
    "channels": "Where the messages of alerts go: webhooks, chats, e-mail.",
    "deliveries": "What became of the messages of alerts.",
    "bulk": "Cancel, retry, delete or redrive many runs at once.",
    "dead-letters": "Inspect jobs that no worker could finish, and run them again.",
    "limits": "Limit how many runs are active, and how fast they start.",
    "secrets": "Keep secrets that params name as ${secrets.NAME}.",
    "vars": "Keep values that params name as ${vars.NAME}.",
    "templates": "Manage workflow templates.",
    "actions": "Manage the actions that templates may use.",
}

COMMANDS = {
    "submit": Command(
        submit,
        (
            place("flow-name", "Flow to run."),
            Option("params", """Params as a JSON object, e.g. '{"x": 1}'."""),
            Option("params-file", "File with the params, JSON.", Path),
            PARAM,
            TAG,
            Option("tags", "Labels for filtering, e.g. nightly,eu."),
            KEY,
            *TIMING,
            *WAIT,
            *OUTPUT,
        ),
    ),
    "submit-yaml": Command(
        submit_yaml,
        (
            place("workflow-file", "Path to the flow.yaml.", Path),
            Option("flow-name", "Flow name shown in lists.", is_required=True),
            TAG,
            *TIMING,
            *WAIT,
            *OUTPUT,
        ),
    ),
    "retry": Command(
        retry,
        (
            RUN_ID,
            Option(
                "from",
                "failed: keep the outputs of the tasks that succeeded, and run the others.",
                default="start",
                choices=("start", "failed"),
            ),
            PARAM,
            *WAIT,
            *OUTPUT,
        ),
    ),
    "rerun": Command(rerun, (RUN_ID, PARAM, *WAIT, *OUTPUT)),
    "get": called(
        "Print the current state of a run.",
        RUN,
        lambda client, given: client.get_run(given.run_id, include=["records"] if given.records else []),
        RUN_ID,
        RECORDS,
    ),
    "tasks": called(
        "Print the tasks of a run and their records.",
        Columns(("run_id",)),
        lambda client, given: client.get_tasks(given.run_id),
        RUN_ID,
    ),
    "logs": Command(
        logs,
        (
            RUN_ID,
            Option("task", "Filter by task."),
            Option("tail", "Number of lines from the end. Default: all stored lines.", int),
            Option("follow", "Print new lines until the run ends.", is_flag=True, short="-f"),
            Option(
                "output",
                "text: the raw output; json: with task and time.",
                default="text",
                choices=("text", "json"),
            ),
        ),
    ),
    "why": Command(
        why,
        (
            RUN_ID,
            Option("output", "Output format.", default="text", choices=("text", "json")),
            Option("quiet", "Print the cause only, e.g. no_worker.", is_flag=True, short="-q"),
        ),
    ),
    "list": called(
        "List runs, newest first.",
        RUNS,
        lambda client, given: client.list_runs(
            given.status,
            given.flow,
            given.tag,
            full=given.full,
            limit=given.limit,
            parent_run_id=given.parent_run_id,
        ),
        *FILTERS,
    ),
    "list-vnext": called(
        "Print one page of runs and the cursor of the next page.",
        RUNS._replace(items="items"),
        lambda client, given: client.list_runs_vnext(
            given.status,
            given.flow,
            given.tag,
            full=given.full,
            limit=given.limit,
            updated_after=given.updated_after,
            updated_before=given.updated_before,
            cursor=given.cursor,
            workflow_yaml_sha256=given.workflow_yaml_sha256,
            parent_run_id=given.parent_run_id,
        ),
        *FILTERS,
        Option("updated-after", "Only runs updated after this Unix time.", float),
        Option("updated-before", "Only runs updated before this Unix time.", float),
        CURSOR,
        Option("workflow-yaml-sha256", "Filter by the SHA-256 of the flow.yaml."),
    ),
    "watch": Command(
        watch,
        (
            RUN_ID,
            RECORDS,
            Option("since", "Only changes after this Unix time.", float),
            TIMEOUT,
            Option("max-events", "Stop after this many events.", int),
            Option("until-terminal", "Exit with code 1 if the run has not ended.", is_flag=True),
            Option(
                "output",
                "json: one event per line; status: one line per change.",
                default="json",
                choices=("json", "status"),
            ),
            Option("json", "Same as --output json.", is_flag=True),
            QUIET,
        ),
    ),
    "cancel": called(
        "Cancel a run.",
        RUN,
        lambda client, given: client.cancel_run(
            given.run_id, given.wait, given.timeout_sec, reason=given.reason
        ),
        RUN_ID,
        Option("reason", "Reason, stored with the run."),
        Option("wait", "Wait until the run ends.", is_flag=True),
        Option("timeout-sec", "With --wait: timeout in seconds.", float, 60.0),
    ),
    # The fleet
    "workers": called(
        "List workers.",
        Columns(("worker_id",), ("state", "worker_id", "tags", "current_run_id", "last_run_status")),
        lambda client, given: client.get_workers(
            given.scope, given.state, include_hidden=given.include_hidden or None, limit=given.limit
        ),
        Option("scope", "active: without stopped workers.", choices=("active", "all")),
        Option("state", "Filter by state."),
        Option("include-hidden", "Include hidden workers.", is_flag=True),
        LIMIT,
    ),
    "worker-hide": called(
        "Hide a worker from lists.",
        WORKER,
        lambda client, given: client.patch_worker_hidden(given.worker_id, hidden=True),
        WORKER_ID,
    ),
    "worker-show": called(
        "Unhide a worker.",
        WORKER,
        lambda client, given: client.patch_worker_hidden(given.worker_id, hidden=False),
        WORKER_ID,
    ),
    "flows list": called(
        "List the flows that workers report, that have runs, or that have defaults.",
        Columns(("name",), ("name", "tags", "workers", "success_rate", "p50_sec", "p95_sec"), "items"),
        lambda client, given: client.flows.list(given.cursor, given.limit),
        *PAGE,
    ),
    "flows show": called(
        "Print a flow and its defaults.",
        Columns(("name",)),
        lambda client, given: client.flows.get(given.name),
        FLOW_NAME,
    ),
    "flows set": called(
        "Set defaults for the runs of a flow. Other defaults stay.",
        Columns(("name",)),
        set_flow,
        FLOW_NAME,
        Option("file", "Replace all defaults by those in this file, JSON.", Path),
        *TIMING[2:],
        Option("params-schema", "File with a JSON Schema for the params, JSON.", Path),
        Option("description", "What the flow does."),
        Option("owner", "Who to ask about the flow."),
        Option("unset", "Remove a default, e.g. retry; may be repeated.", is_repeated=True),
    ),
    "flows pause": called(
        "Pause a flow: its runs are accepted and wait.",
        Columns(("flow",)),
        lambda client, given: client.flows.pause(given.name, given.reason, given.until),
        FLOW_NAME,
        REASON._replace(help="Reason, shown with the runs that wait."),
        Option("until", "When the pause ends by itself, e.g. 2026-12-01T02:00+09:00."),
    ),
    "flows resume": called(
        "Resume a paused flow. The runs that waited go on.",
        Columns(("flow",)),
        lambda client, given: client.flows.resume(given.name),
        FLOW_NAME,
    ),
    "value": Command(
        value,
        (
            place("reference", "The text of its `$ref`: sha256:…"),
            Option("file", "Save it in this file instead.", Path),
        ),
    ),
    "artifacts": Command(
        artifacts,
        (
            RUN_ID,
            place("name", "Name of the artifact to save; without, all are listed.", is_required=False),
            Option("file", "Save it in this file. Default: its name, here.", Path),
            *OUTPUT,
        ),
    ),
    "metrics": Command(metrics, (Option("worker", "Print those of this worker, as of its last heartbeat."),)),
    "wheels": called(
        "List registered wheels.",
        WHEEL._replace(shown=("name", "size_bytes", "tags")),
        lambda client, _: client.list_wheels(),
    ),
    "wheel-history": called(
        "List wheel uploads and deletions, newest first.",
        Columns(("event_id",), ("action", "wheel_name", "tags")),
        lambda client, given: client.list_wheel_history(given.limit, given.wheel_name, given.action),
        place("wheel-name", "Filter by wheel.", is_required=False),
        LIMIT,
        Option("action", "Filter by action.", choices=("upload", "delete")),
    ),
    "wheel-upload": called(
        "Register a wheel for installation on workers.",
        WHEEL,
        lambda client, given: client.upload_wheel(given.wheel_file, read_words(given.tags)),
        place("wheel-file", "Wheel file.", Path),
        Option("tags", "Target workers by tag, e.g. cpu,linux. Default: all workers."),
        Option("replace", "No effect; kept for compatibility.", is_flag=True),
        Option("no-replace", "No effect; kept for compatibility.", is_flag=True),
    ),
    "wheel-delete": called(
        "Delete a wheel; workers uninstall it at their next sync.",
        WHEEL,
        lambda client, given: client.delete_wheel(given.name),
        place("name", "Wheel file name."),
    ),
    # Executions
    "executions create": Command(
        create,
        (
            GRAPH_ID,
            Option("input-file", "File with the input, JSON.", Path),
            Option("input", "Input as JSON."),
            PARAM,
            Option("execution-id", "Execution id to use. Default: a generated id."),
            Option("graph-version", "Graph version. Default: the latest.", int),
            Option("no-start", "Create the execution without starting it.", is_flag=True),
            Option("wait", "Wait until the execution ends; exit code 1 unless it completed.", is_flag=True),
            KEY,
            *OUTPUT,
        ),
    ),
    "executions get": called(
        "Print the state of an execution.",
        EXECUTION,
        lambda client, given: client.executions.get(given.execution_id, given.at_sequence),
        EXECUTION_ID,
        Option("at-sequence", "State after the event with this sequence number.", int),
    ),
    "executions list": called(
        "List executions, newest first.",
        Columns(("execution_id",), ("execution_id", "status", "graph_id", "graph_version"), "items"),
        lambda client, given: client.executions.list(
            given.status,
            given.graph_id,
            archived=given.archived or None,
            cursor=given.cursor,
            limit=given.limit,
        ),
        Option("status", "Filter by status.", choices=("ACTIVE", "COMPLETED", "FAILED", "CANCELED")),
        Option("graph-id", "Filter by graph."),
        Option("archived", "List archived executions only.", is_flag=True),
        *PAGE,
    ),
    "executions events": called(
        "Print the event log of an execution.",
        Columns(("event_id",), ("sequence", "type", "payload"), "items"),
        lambda client, given: client.executions.events(given.execution_id, given.after, given.limit),
        EXECUTION_ID,
        AFTER,
        LIMIT,
    ),
    "executions items": called(
        "List the items of a map node, in order.",
        Columns(("index",), ("index", "status", "attempt", "run_id", "execution_id"), "items"),
        lambda client, given: client.executions.items(
            given.execution_id, given.node_id, status=given.status, cursor=given.cursor, limit=given.limit
        ),
        EXECUTION_ID,
        place("node-id", "Node of type map."),
        Option(
            "status",
            "Only items with this status.",
            choices=("IDLE", "RUNNING", "SUCCEEDED", "FAILED", "CANCELED"),
        ),
        *PAGE,
    ),
    "executions watch": Command(
        watch_execution,
        (
            EXECUTION_ID,
            AFTER,
            Option(
                "output",
                "json: one event per line; status: one short line.",
                default="json",
                choices=("json", "status"),
            ),
            QUIET,
        ),
    ),
    "executions cancel": called(
        "Cancel an execution. Once accepted, the execution ends as CANCELED.",
        EXECUTION,
        lambda client, given: client.executions.cancel(given.execution_id, given.reason),
        EXECUTION_ID,
        REASON,
    ),
    "executions archive": called(
        "Archive an ended execution: hide it from the default list.",
        EXECUTION,
        lambda client, given: client.executions.archive(given.execution_id, given.reason),
        EXECUTION_ID,
        REASON,
    ),
    "executions rerun": called(
        "Run an execution again as a new one with the same graph version and input.",
        EXECUTION,
        lambda client, given: client.executions.rerun(
            given.execution_id, getattr(given, "from"), idempotency_key=given.idempotency_key
        ),
        EXECUTION_ID,
        Option(
            "from",
            "start: run every node again; failed: reuse the outputs of succeeded nodes.",
            default="start",
            choices=("start", "failed"),
        ),
        KEY,
    ),
    "executions command": called(
        "Send any command, such as StartExecution, StartNode, SucceedNode or FailNode.",
        EXECUTION,
        lambda client, given: client.executions.command(
            given.execution_id,
            given.name,
            idempotency_key=given.idempotency_key,
            **{**read_object(given.fields), **read_pairs(given.field)},
        ),
        EXECUTION_ID,
        place("name", "Command name."),
        Option("field", "One command field as key=value; may be repeated.", is_repeated=True),
        Option("fields", "All command fields as JSON."),
        KEY,
    ),
    "executions message": called(
        "Send a message to a node that waits for it; one that comes early is kept.",
        Columns(("sequence",)),
        lambda client, given: client.executions.send_message(
            given.execution_id, given.name, read_json(given.data), idempotency_key=given.idempotency_key
        ),
        EXECUTION_ID,
        place("name", "Name of the message."),
        Option("data", "Its data as JSON; becomes the output of the node."),
        KEY,
    ),
    "waits": called(
        "List nodes waiting for a person, oldest first.",
        Columns(("execution_id", "node_id"), ("execution_id", "node_id", "prompt", "wait_key"), "items"),
        lambda client, given: client.executions.waits(given.cursor, given.limit),
        *PAGE,
    ),
    "resume": called(
        "Resume a waiting node.",
        EXECUTION,
        lambda client, given: client.executions.resume(
            given.execution_id, given.node_id, read_json(given.data), given.key
        ),
        EXECUTION_ID,
        place("node-id", "Waiting node."),
        Option("data", "Resume data as JSON; becomes the output of a wait node."),
        Option("key", "The node's wait_key, if it has one."),
    ),
    # Graphs
    "graphs put": Command(
        put_graph,
        (
            place("file", "Graph definition: YAML, or JSON if named *.json.", Path),
            Option("id", "Graph id. Default: the id in the file, else the file name without extension."),
            *OUTPUT,
        ),
    ),
    "graphs get": called(
        "Print a graph.",
        GRAPH,
        lambda client, given: client.get_graph(given.graph_id, given.version),
        GRAPH_ID,
        Option("version", "Graph version. Default: the latest.", int),
    ),
    "graphs list": called(
        "List the latest version of each graph.",
        Columns(("graph_id",), ("graph_id", "version", "nodes", "registered_by"), "items"),
        lambda client, given: client.list_graphs(given.cursor, given.limit),
        *PAGE,
    ),
    # Events
    "events send": called(
        "Send an event and print the run or execution it started or resumed.",
        STARTED,
        lambda client, given: client.events.send(**event_fields(given)),
        place("template-id", "Template to start.", is_required=False),
        Option("event-name", "Alternative to --template-id: the first action of the template."),
        *START,
        Option("source", "Name of the sender."),
        Option("notes", "Free text."),
        Option("data-file", "File with the data, JSON.", Path),
        Option("execution-id", "With --node-id: resume this execution's node with the data."),
        Option("node-id", "Node to resume; it may not be waiting yet."),
        Option("wait-key", "Resume the node waiting with this key."),
        Option(
            "token", "Event token, if required (also: AX_WORKFLOW_EVENT_TOKEN, AX_WORKFLOW_EVENT_TOKEN_FILE)."
        ),
    ),
    "events summary": called(
        "Print the monthly event summary.",
        Columns(("ym",)),
        lambda client, given: client.events.summary(given.ym, given.recent_limit),
        place("ym", "Month as YYYY-MM."),
        Option("recent-limit", "Number of recent events to include (up to 200).", int),
    ),
    "events retry-jobs": called(
        "Print the retry jobs.",
        Columns(("id",), ("id", "status", "template_id", "attempts", "last_reason_code"), "jobs"),
        lambda client, given: client.events.retry_jobs(given.limit),
        LIMIT,
    ),
    "events drain": called(
        "Process the retry queue now.",
        Columns(),
        lambda client, given: client.events.drain(given.limit, force=given.force),
        LIMIT,
        Option("force", "Include jobs that are not due yet.", is_flag=True),
    ),
    "events retry": called(
        "Reset a retry job's attempts and make it due now.",
        BY_ID,
        lambda client, given: client.events.retry_job(given.job_id),
        JOB_ID,
    ),
    "events discard": called(
        "Discard a retry job.", BY_ID, lambda client, given: client.events.discard_job(given.job_id), JOB_ID
    ),
    "events replay": called(
        "Replay an event.",
        STARTED,
        lambda client, given: client.events.replay(given.event_id),
        place("event-id", "Event id from the response or the summary."),
    ),
    "apply": called(
        "Create or change what a directory defines, from flows to schedules.",
        BY_ID._replace(shown=("change", "kind", "id", "fields")),
        apply,
        place(
            "directory",
            "Directory with the folders flows, graphs, limits, alerts, actions, templates, schedules;"
            " one JSON each.",
            Path,
        ),
        Option("dry-run", "Only print the differences.", is_flag=True),
    ),
    "queues list": called(
        "List queues by tag: what waits and runs, pauses, live workers.",
        Columns(
            ("tag",),
            ("tag", "waiting", "running", "paused", "oldest_wait_sec", "workers", "throughput_per_min"),
            "items",
        ),
        lambda client, _: client.list_queues(),
    ),
    "queues pause": called(
        "Pause a queue: workers take no more runs of the tag. Active runs go on.",
        Columns(("tag",)),
        lambda client, given: client.pause_queue(given.tag, given.reason, given.until),
        place("tag", "Tag of the queue."),
        REASON._replace(help="Reason, shown with the queue and its runs."),
        Option("until", "When the pause ends by itself, e.g. 2026-12-01T02:00+09:00."),
    ),
    "queues resume": called(
        "Resume a paused queue.",
        Columns(("tag",)),
        lambda client, given: client.resume_queue(given.tag),
        place("tag", "Tag of the queue."),
    ),
    "limits put": called(
        "Create or change a limit from a file.",
        BY_NAME,
        put_limit,
        place("file", "Limit definition, JSON.", Path),
        Option("name", "Limit name. Default: the name in the file, else the file name without extension."),
    ),
    "limits list": called(
        "List limits by name, with their holders and waiting runs.",
        Columns(("name",), ("name", "max_running", "on_full", "holders", "waiting", "admitted"), "items"),
        lambda client, given: client.limits.list(given.cursor, given.limit),
        *PAGE,
    ),
    "limits show": called(
        "Print a limit.", BY_NAME, lambda client, given: client.limits.get(given.name), LIMIT_NAME
    ),
    "limits keys": called(
        "List the keys of a limit that are in use.",
        Columns(("key",), ("key", "holders", "waiting"), "items"),
        lambda client, given: client.limits.keys(given.name, given.cursor, given.limit),
        LIMIT_NAME,
        *PAGE,
    ),
    "limits delete": called(
        "Delete a limit. Runs that wait for it go on.",
        BY_NAME,
        lambda client, given: client.limits.delete(given.name),
        LIMIT_NAME,
    ),
    "secrets put": called(
        "Set a secret. Its value is read from the standard input, and never shown again.",
        BY_NAME,
        lambda client, given: client.secrets.put(given.name, read_value(given.file, is_secret=True)),
        NAMED,
        Option(
            "file",
            "File with the value, instead of the standard input. One newline at its end is left out.",
            Path,
        ),
    ),
    "secrets list": called(
        "List secrets, newest first, without their values.",
        Columns(("name",), ("name", "created_at", "updated_at"), "items"),
        lambda client, given: client.secrets.list(given.cursor, given.limit),
        *PAGE,
    ),
    "secrets show": called(
        "Print a secret without its value.",
        BY_NAME,
        lambda client, given: client.secrets.get(given.name),
        NAMED,
    ),
    "secrets delete": called(
        "Delete a secret. Runs that name it and start later fail.",
        BY_NAME,
        lambda client, given: client.secrets.delete(given.name),
        NAMED,
    ),
    "vars put": called(
        "Set a variable. Without --value or --file, its value is read from the standard input.",
        BY_NAME,
        put_variable,
        NAMED,
        Option("value", "The value."),
        Option("file", "File with the value. One newline at its end is left out.", Path),
        Option("as-json", "The value is JSON, not text.", is_flag=True),
    ),
    "vars list": called(
        "List variables, newest first.",
        Columns(("name",), ("name", "value", "updated_at"), "items"),
        lambda client, given: client.variables.list(given.cursor, given.limit),
        *PAGE,
    ),
    "vars show": called(
        "Print a variable.", BY_NAME, lambda client, given: client.variables.get(given.name), NAMED
    ),
    "vars delete": called(
        "Delete a variable. Runs that name it and start later fail.",
        BY_NAME,
        lambda client, given: client.variables.delete(given.name),
        NAMED,
    ),
    "alerts put": called(
        "Create or change an alert from a file.",
        BY_NAME,
        put_alert,
        place("file", "Alert definition, JSON.", Path),
        Option("name", "Alert name. Default: the name in the file, else the file name without extension."),
    ),
    "alerts list": called(
        "List alerts, newest first.",
        Columns(("name",), ("name", "on", "channel", "filter", "cooldown_sec"), "items"),
        lambda client, given: client.alerts.list(given.cursor, given.limit),
        *PAGE,
    ),
    "alerts show": called(
        "Print an alert.", BY_NAME, lambda client, given: client.alerts.get(given.name), ALERT_NAME
    ),
    "alerts delete": called(
        "Delete an alert. Messages on their way are still delivered.",
        BY_NAME,
        lambda client, given: client.alerts.delete(given.name),
        ALERT_NAME,
    ),
    "channels put": called(
        "Create or change a channel from a file. A generated secret is printed, once.",
        BY_NAME,
        put_channel,
        place("file", "Channel definition, JSON.", Path),
        Option("name", "Channel name. Default: the name in the file, else the file name without extension."),
    ),
    "channels list": called(
        "List channels, newest first.",
        Columns(("name",), ("name", "type", "host"), "items"),
        lambda client, given: client.channels.list(given.cursor, given.limit),
        *PAGE,
    ),
    "channels show": called(
        "Print a channel, without its secrets.",
        BY_NAME,
        lambda client, given: client.channels.get(given.name),
        CHANNEL_NAME,
    ),
    "channels delete": called(
        "Delete a channel that no alert uses.",
        BY_NAME,
        lambda client, given: client.channels.delete(given.name),
        CHANNEL_NAME,
    ),
    "deliveries list": called(
        "List deliveries, newest first.",
        Columns(("id",), ("id", "type", "alert", "channel", "status", "attempts", "last_error"), "items"),
        lambda client, given: client.deliveries.list(
            alert=given.alert,
            channel=given.channel,
            status=given.status,
            cursor=given.cursor,
            limit=given.limit or 50,
        ),
        Option("alert", "Filter by alert."),
        Option("channel", "Filter by channel."),
        Option("status", "Filter by status.", choices=("PENDING", "DELIVERED", "FAILED")),
        *PAGE,
    ),
    "deliveries show": called(
        "Print a delivery, with what is sent.",
        BY_ID,
        lambda client, given: client.deliveries.get(given.delivery_id),
        DELIVERY_ID,
    ),
    "deliveries replay": called(
        "Send a delivery again, with the same id and body.",
        BY_ID,
        lambda client, given: client.deliveries.replay(given.delivery_id),
        DELIVERY_ID,
    ),
    "dead-letters list": called(
        "List dead letters, newest first.",
        Columns(("id",), ("id", "reason", "flow_name", "tag", "run_id", "redriven_as", "error"), "items"),
        lambda client, given: client.dead_letters.list(
            reason=given.reason,
            tag=given.tag,
            flow=given.flow,
            since=given.since,
            cursor=given.cursor,
            limit=given.limit or 50,
        ),
        Option(
            "reason",
            "Filter by reason.",
            choices=("invalid_job", "flow_not_found", "execution_error", "max_deliver"),
        ),
        TAG._replace(help="Filter by tag."),
        Option("flow", "Filter by flow name."),
        Option("since", "Written then or later, e.g. 2026-12-01T00:00+09:00"),
        *PAGE,
    ),
    "dead-letters show": called(
        "Print a dead letter.",
        BY_ID,
        lambda client, given: client.dead_letters.get(given.letter_id),
        LETTER_ID,
    ),
    "dead-letters redrive": called(
        "Run the run of a dead letter again. A second time prints the same run.",
        RUN,
        lambda client, given: client.dead_letters.redrive(given.letter_id),
        LETTER_ID,
    ),
    "dead-letters discard": called(
        "Remove a dead letter. Its run is kept.",
        BY_ID,
        lambda client, given: client.dead_letters.discard(given.letter_id),
        LETTER_ID,
    ),
    "bulk start": Command(
        start_bulk,
        (
            place("action", "What to do: cancel, retry, delete; redrive: dead letters instead of runs."),
            Option("ids", "Run ids; for redrive, ids of dead letters.", is_rest=True),
            Option("status", "Runs with this status."),
            Option("flow", "Runs or dead letters of this flow."),
            Option("tag", "Runs or dead letters with this tag."),
            Option("updated-after", "Runs that changed after this time, e.g. 2026-12-01T00:00+09:00"),
            Option("updated-before", "Runs that changed before this time."),
            Option("reason", "Dead letters with this reason."),
            Option("since", "Dead letters written then or later."),
            Option("all", "All runs or dead letters, if no filter is given.", is_flag=True),
            Option("dry-run", "Only print how many they are, and the first 20.", is_flag=True),
            Option("max-per-sec", "Maximum number of items per second.", float),
            Option("wait", "Wait for the end. Exit code 1 if an item failed.", is_flag=True),
            *OUTPUT,
        ),
    ),
    "bulk show": called(
        "Print an operation: what is done, what failed, what is left.",
        OPERATION,
        lambda client, given: client.bulk.get(given.bulk_id),
        BULK_ID,
    ),
    "bulk list": called(
        "List operations, newest first.",
        Columns(("id",), ("id", "action", "status", "total", "done", "failed", "left"), "items"),
        lambda client, given: client.bulk.list(given.cursor, given.limit or 50),
        *PAGE,
    ),
    "bulk cancel": called(
        "Cancel an operation. What it has done stays done.",
        OPERATION,
        lambda client, given: client.bulk.cancel(given.bulk_id),
        BULK_ID,
    ),
    "bulk watch": Command(
        watch_bulk,
        (
            BULK_ID,
            Option(
                "output",
                "json: the operation in one line per change; status: one short line per change.",
                default="json",
                choices=("json", "status"),
            ),
            QUIET,
        ),
    ),
    "stats": Command(
        show_stats,
        (
            Option(
                "by", "What the runs are counted by.", default="status", choices=("status", "flow", "tag")
            ),
            Option(
                "bucket",
                "minute: of the last day; hour: of the last 90 days.",
                default="minute",
                choices=("minute", "hour"),
            ),
            Option(
                "since", "Ended then or later, e.g. 2026-12-01T00:00+09:00. Default: the last hour, or day."
            ),
            Option("until", "Ended before this time. Default: now."),
            Option("flow", "Filter by flow name."),
            TAG._replace(help="Filter by tag."),
            Option("status", "Filter by status.", choices=("COMPLETED", "FAILED", "CANCELLED")),
            *OUTPUT,
        ),
    ),
    "delete": called(
        "Delete an ended run and its log.",
        RUN,
        lambda client, given: client.delete_run(given.run_id),
        RUN_ID,
    ),
    "worker-delete": called(
        "Delete the record of a worker that is gone.",
        WORKER,
        lambda client, given: client.delete_worker(given.worker_id),
        WORKER_ID,
    ),
    "executions delete": called(
        "Delete an archived execution. Its id cannot be used again.",
        EXECUTION,
        lambda client, given: client.executions.delete(given.execution_id),
        EXECUTION_ID,
    ),
    "api-keys create": called(
        "Create an API key and print it. The key is shown only once.",
        Columns(("api_key",)),
        lambda client, given: client.api_keys.create(
            read_words(given.scopes) or [],
            expires_at=read_time(given.expires_at),
            description=given.description,
        ),
        place("scopes", "What the key may do, separated by commas: read, submit, operate, deploy, admin."),
        Option(
            "expires-at",
            "When the key stops working: RFC 3339 with an offset, or Unix seconds. Default: never.",
        ),
        Option("description", "What the key is for."),
    ),
    "api-keys list": called(
        "List the API keys of your tenant, newest first, including revoked ones.",
        Columns(("key_id",), ("key_id", "scopes", "created_at", "expires_at", "revoked_at"), "items"),
        lambda client, given: client.api_keys.list(given.cursor, given.limit),
        *PAGE,
    ),
    "api-keys revoke": called(
        "Revoke an API key. Gateways apply it within a second.",
        Columns(("key_id",)),
        lambda client, given: client.api_keys.revoke(given.key_id),
        place("key-id", "Key id: the part between `pyoco_` and the dot."),
    ),
    "audit": called(
        "List changes, newest first: who changed what, when and from where.",
        Columns(("id",), ("at", "action", "target", "actor"), "items"),
        lambda client, given: client.list_audit(
            action=given.action,
            target=given.target,
            key_id=given.key_id,
            since=given.since,
            until=given.until,
            cursor=given.cursor,
            limit=given.limit,
        ),
        Option("action", "Filter by action, e.g. schedule.put."),
        Option("target", "Filter by what was changed: an id, a kind, or kind/id."),
        Option("key-id", "Filter by the API key of the author."),
        Option("since", "Changes since then: RFC 3339 with an offset, or Unix seconds."),
        Option("until", "Changes until then."),
        *PAGE,
    ),
    "schedules put": called(
        "Create or change a schedule from a file.",
        BY_ID,
        put_schedule,
        place("file", "Schedule definition, JSON.", Path),
        Option("id", "Schedule id. Default: the id in the file, else the file name without extension."),
    ),
    "schedules list": called(
        "List schedules by id, with their next and last tick.",
        Columns(("id",), ("id", "cron", "every_sec", "timezone", "next_due_at", "paused"), "items"),
        lambda client, given: client.schedules.list(given.cursor, given.limit),
        *PAGE,
    ),
    "schedules show": called(
        "Print a schedule.", BY_ID, lambda client, given: client.schedules.get(given.schedule_id), SCHEDULE_ID
    ),
    "schedules preview": called(
        "Print the next ticks of a schedule, or of a cron expression before you use it.",
        Columns(("due_at",), ("due_at",), "items"),
        preview_schedule,
        SCHEDULE_ID._replace(is_required=False),
        Option("cron", "Cron expression to try instead."),
        Option("every-sec", "Interval in seconds to try instead.", float),
        Option("timezone", "IANA time zone of the expression. Default: that of the server."),
        Option("count", "Number of ticks.", int, 10, short="-n"),
    ),
    "schedules ticks": called(
        "List what became of the ticks of a schedule, newest first.",
        Columns(
            ("run_id", "execution_id"), ("due_at", "status", "run_id", "execution_id", "reason"), "items"
        ),
        lambda client, given: client.schedules.ticks(given.schedule_id, given.cursor, given.limit),
        SCHEDULE_ID,
        *PAGE,
    ),
    "schedules pause": called(
        "Pause a schedule: its ticks are skipped.",
        BY_ID,
        lambda client, given: client.schedules.pause(given.schedule_id, given.reason),
        SCHEDULE_ID,
        REASON._replace(help="Reason, shown with the schedule."),
    ),
    "schedules resume": called(
        "Resume a paused schedule. Skipped ticks are not caught up.",
        BY_ID,
        lambda client, given: client.schedules.resume(given.schedule_id),
        SCHEDULE_ID,
    ),
    "schedules trigger": called(
        "Start a tick now.",
        Columns(("run_id", "execution_id")),
        lambda client, given: client.schedules.trigger(
            given.schedule_id, idempotency_key=given.idempotency_key
        ),
        SCHEDULE_ID,
        KEY,
    ),
    "schedules backfill": called(
        "Start the ticks of a past period that were not started.",
        Columns(("due_at",), ("due_at",), "items"),
        lambda client, given: client.schedules.backfill(
            given.schedule_id,
            getattr(given, "from"),
            given.to,
            only_missing=not given.again,
            dry_run=given.dry_run,
        ),
        SCHEDULE_ID,
        place("from", "Start of the period, e.g. 2026-12-01T00:00+09:00"),
        place("to", "End of the period."),
        Option("again", "Start also ticks that were started already.", is_flag=True),
        Option("dry-run", "Only print the ticks.", is_flag=True),
    ),
    "schedules delete": called(
        "Delete a schedule. Its runs are kept.",
        BY_ID,
        lambda client, given: client.schedules.delete(given.schedule_id),
        SCHEDULE_ID,
    ),
    "templates list": called(
        "List all templates.",
        BY_ID._replace(shown=("id", "name", "year", "month")),
        lambda client, _: client.events.list_templates(),
    ),
    "templates get": called(
        "Print a template.",
        BY_ID,
        lambda client, given: client.events.get_template(given.template_id),
        TEMPLATE_ID,
    ),
    "templates put": called(
        "Create or update a template.",
        BY_ID,
        lambda client, given: client.events.put_template(
            given.template_id, read_template(given), given.if_match
        ),
        TEMPLATE_ID,
        place("file", "Template definition, JSON.", Path),
        Option("when", "Filter in CEL; other events start nothing. It reads event, event_name and source."),
        Option("no-month", "Events need no year and month.", is_flag=True),
        Option("if-match", "Update only if the stored template has this updated_at."),
    ),
    "templates delete": called(
        "Delete a template.",
        BY_ID,
        lambda client, given: client.events.delete_template(given.template_id),
        TEMPLATE_ID,
    ),
    "templates start": called(
        "Start a template manually.",
        STARTED,
        lambda client, given: client.events.start_template(given.template_id, **start_fields(given)),
        TEMPLATE_ID,
        *START,
    ),
    "actions list": called(
        "List all actions.",
        ACTION._replace(shown=("key", "flow_name", "tag", "graph_id", "concurrency")),
        lambda client, _: client.events.list_actions(),
    ),
    "actions put": called(
        "Register an action that runs a flow or a registered graph.",
        ACTION,
        lambda client, given: client.events.put_action(given.key, action_fields(given)),
        ACTION_KEY,
        Option("flow-name", "Flow to run."),
        Option("graph-id", "Graph to run instead of a flow."),
        Option("tag", "Tag of the workers that run it."),
        Option("params", "JSON object with params for every run."),
        Option("one-at-a-time", "Run one at a time; further events wait.", is_flag=True),
        *TIMING,
    ),
    "actions delete": called(
        "Delete an action.",
        ACTION,
        lambda client, given: client.events.delete_action(given.key),
        ACTION_KEY,
    ),
}
