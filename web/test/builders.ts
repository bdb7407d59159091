import type { RunSummary } from "../src/api/client";

export function aRun(id: string, updated_at: number, more: Partial<RunSummary> = {}): RunSummary {
  return {
    run_id: id,
    flow_name: "f",
    status: "RUNNING",
    tag: "default",
    tags: null,
    updated_at,
    heartbeat_at: updated_at,
    submitted_at: updated_at,
    start_time: null,
    end_time: null,
    worker_id: null,
    attempt: null,
    error: null,
    cancel_requested_at: null,
    tasks_total: 0,
    tasks_done: 0,
    tenant_id: null,
    api_key_id: null,
    workflow_yaml_sha256: null,
    workflow_yaml_bytes: null,
    execution_id: null,
    node_id: null,
    schedule_id: null,
    due_at: null,
    not_before: null,
    instance_id: null,
    parent_run_id: null,
    ...more,
  };
}
