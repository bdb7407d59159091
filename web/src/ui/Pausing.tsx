/** Pausing and resuming: of a flow, or of the queue of a tag. */
import { useState } from "preact/hooks";
import type { Pause } from "../api/client";
import { visible } from "../format";
import { t } from "../i18n";
import { ConfirmDialog } from "./ConfirmDialog";
import { FormDialog } from "./FormDialog";
import { TextField } from "./fields";
import { placed } from "./refusal";
import { Age, Moment, Problem } from "./texts";
import { toast } from "./toasts";
import { useSending } from "./useSending";

export interface PauseWish {
  reason?: string;
  /** Unix seconds. */
  until?: number;
}

const FIELDS = ["reason", "until"];

export function PauseDialog({
  title,
  lead,
  onPause,
  onClose,
}: {
  title: string;
  lead: string;
  onPause: (wish: PauseWish) => Promise<void>;
  onClose: () => void;
}) {
  const [reason, setReason] = useState("");
  const [until, setUntil] = useState("");
  const { error, isBusy, send } = useSending();
  const { at, rest } = placed(error, FIELDS);

  async function pause(): Promise<void> {
    await onPause({
      ...(reason.trim() ? { reason: reason.trim() } : {}),
      ...(until ? { until: Date.parse(until) / 1000 } : {}),
    });
    toast(t("pause.done"));
    onClose();
  }

  return (
    <FormDialog title={title} verb={t("pause.do")} isBusy={isBusy} onSubmit={() => send(pause)} onClose={onClose}>
      <p>{lead}</p>
      <TextField
        label={t("pause.reason")}
        value={reason}
        onChange={setReason}
        problem={at("reason")}
        maxLength={2000}
        autoFocus
      />
      <TextField
        type="datetime-local"
        label={t("pause.until")}
        hint={t("pause.until.hint", { zone: Intl.DateTimeFormat().resolvedOptions().timeZone })}
        value={until}
        onChange={setUntil}
        problem={at("until")}
      />
      {rest && <Problem error={rest} />}
    </FormDialog>
  );
}

export function ResumeDialog({
  title,
  lead,
  onResume,
  onClose,
}: {
  title: string;
  lead: string;
  onResume: () => Promise<void>;
  onClose: () => void;
}) {
  async function resume(): Promise<void> {
    await onResume();
    toast(t("pause.resumed"));
  }
  return (
    <ConfirmDialog title={title} lead={lead} verb={t("pause.resume")} isHarmless onConfirm={resume} onClose={onClose} />
  );
}

/** Why, since when, and until when. */
export function PauseFacts({ pause }: { pause: Pause }) {
  return (
    <>
      {pause.reason && <>{visible(pause.reason)} · </>}
      {t("pause.since")} <Age at={pause.since} />
      {pause.until !== null && (
        <>
          {" · "}
          {t("pause.ends")} <Moment at={pause.until} />
        </>
      )}
    </>
  );
}
