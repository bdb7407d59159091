import { useState } from "preact/hooks";
import { MadeDialog } from "../admin/KeysPage";
import { del, get, put } from "../api/client";
import { link } from "../app/router";
import { tickLabel, visible } from "../format";
import { t } from "../i18n";
import { usePolling } from "../live/usePolling";
import { FormDialog } from "../ui/FormDialog";
import { ChoiceField, TextField } from "../ui/fields";
import { type PartOf, Parts } from "../ui/Parts";
import { placed } from "../ui/refusal";
import { Age, Problem } from "../ui/texts";
import { useSending } from "../ui/useSending";
import {
  type Alert,
  alertBody,
  alertTexts,
  type Channel,
  type ChannelTexts,
  channelBody,
  channelTexts,
  isTimed,
  KINDS,
  TYPES,
} from "./alert";
import { DeliveriesPart } from "./DeliveriesPart";
import { Named } from "./Named";

const PARTS: PartOf[] = [
  { path: "alerts", title: "alerts.alerts", Part: AlertsPart },
  { path: "channels", title: "alerts.channels", Part: ChannelsPart },
  { path: "deliveries", title: "events.deliveries", Part: DeliveriesPart },
];

export function AlertsPage({ id }: { id?: string }) {
  return <Parts section="alerts" title="nav.alerts" parts={PARTS} {...(id ? { id } : {})} />;
}

export const NAME = "[A-Za-z0-9_\\-]{1,64}";

interface Editing<T> {
  known: T | null;
  onSaved: () => void;
  onClose: () => void;
}

function AlertsPart() {
  return (
    <Named<Alert>
      kind="alerts"
      ask={(query, signal) => get("/alerts", { query, signal })}
      columns={[
        {
          title: t("alerts.alerts"),
          class: "cell-main",
          cell: (one) => (
            <>
              <strong>{one.name}</strong>
              {one.filter && <span class="row-reason mono">{visible(one.filter)}</span>}
            </>
          ),
        },
        {
          title: t("alerts.on"),
          cell: (one) => (
            <span class="tags">
              {one.on.map((kind) => (
                <span key={kind} class="tag" title={kind}>
                  {t(`alerts.on.${kind}`)}
                </span>
              ))}
            </span>
          ),
        },
        { title: t("alerts.channel"), cell: (one) => <a href={link(["alerts", "channels"])}>{one.channel}</a> },
        { title: t("alerts.cooldown"), cell: (one) => (one.cooldown_sec > 0 ? tickLabel(one.cooldown_sec) : "–") },
        {
          title: t("events.deliveries"),
          cell: (one) => <a href={link(["alerts", "deliveries"], { alert: one.name })}>{t("events.deliveries")}</a>,
        },
      ]}
      form={(known, onSaved, onClose) => <AlertDialog known={known} onSaved={onSaved} onClose={onClose} />}
      remove={(name) => del("/alerts/{name}", { path: { name } })}
    />
  );
}

function AlertDialog({ known, onSaved, onClose }: Editing<Alert>) {
  const [name, setName] = useState(known?.name ?? "");
  const [texts, setTexts] = useState(alertTexts(known));
  const channels = usePolling((signal) => get("/channels", { query: { limit: 200 }, signal }), 10_000, "channels");
  const { error, isBusy, send } = useSending();
  const { at, rest } = placed(error, ["filter", "late_after_sec", "cooldown_sec", "channel"]);
  const names = channels.value?.items.map((one) => one.name) ?? [];
  const channel = texts.channel || names[0] || "";
  const change = (part: Partial<typeof texts>) => setTexts({ ...texts, ...part });

  async function save(): Promise<void> {
    await put("/alerts/{name}", { path: { name }, body: alertBody({ ...texts, channel }) });
    onClose();
    onSaved();
  }

  return (
    <FormDialog
      title={known ? visible(known.name) : t("named.alerts.new")}
      verb={t("action.save")}
      isBusy={isBusy || texts.on.length === 0 || channel === ""}
      onSubmit={() => send(save)}
      onClose={onClose}
    >
      <NameField value={name} onChange={setName} isKnown={known !== null} />
      <fieldset class="scopes is-two">
        <legend>{t("alerts.on")}</legend>
        {KINDS.map((kind) => (
          <label key={kind} class="inline">
            <input
              type="checkbox"
              checked={texts.on.includes(kind)}
              onChange={() => change({ on: KINDS.filter((one) => texts.on.includes(one) !== (one === kind)) })}
            />
            <span title={kind}>{t(`alerts.on.${kind}`)}</span>
          </label>
        ))}
      </fieldset>
      {channels.value && names.length === 0 ? (
        <p class="notice">
          {t("alerts.noChannel")} <a href={link(["alerts", "channels"])}>{t("alerts.channels")}</a>
        </p>
      ) : (
        <ChoiceField
          label={t("alerts.channel")}
          value={channel}
          onChange={(value) => change({ channel: value })}
          problem={at("channel")}
          choices={names.map((one) => ({ value: one, text: one }))}
        />
      )}
      <div class="form-row">
        {isTimed(texts.on) && (
          <TextField
            label={t("alerts.late")}
            type="number"
            min={1}
            required
            value={texts.late}
            onChange={(late) => change({ late })}
            problem={at("late_after_sec")}
          />
        )}
        <TextField
          label={t("alerts.cooldown.sec")}
          type="number"
          min={0}
          required
          value={texts.cooldown}
          onChange={(cooldown) => change({ cooldown })}
          problem={at("cooldown_sec")}
        />
      </div>
      <TextField
        label={t("alerts.filter")}
        hint={'flow_name == "nightly-report" && "prod" in tags'}
        class="mono"
        value={texts.filter}
        onChange={(filter) => change({ filter })}
        problem={at("filter")}
      />
      {rest && <Problem error={rest} />}
    </FormDialog>
  );
}

export function NameField({
  value,
  onChange,
  isKnown,
}: {
  value: string;
  onChange: (text: string) => void;
  isKnown: boolean;
}) {
  return (
    <TextField
      label={t("named.name")}
      value={value}
      onChange={onChange}
      required
      readOnly={isKnown}
      autoFocus={!isKnown}
      pattern={NAME}
    />
  );
}

function ChannelsPart() {
  return (
    <Named<Channel>
      kind="channels"
      ask={(query, signal) => get("/channels", { query, signal })}
      columns={[
        { title: t("alerts.channel"), class: "cell-main strong", cell: (one) => one.name },
        { title: t("alerts.type"), cell: (one) => t(`alerts.type.${one.type}`) },
        { title: t("alerts.host"), cell: (one) => <span class="mono">{visible(one.host)}</span> },
        { title: t("runs.column.updated"), cell: (one) => <Age at={one.updated_at} /> },
        {
          title: t("events.deliveries"),
          cell: (one) => <a href={link(["alerts", "deliveries"], { channel: one.name })}>{t("events.deliveries")}</a>,
        },
      ]}
      form={(known, onSaved, onClose) => <ChannelDialog known={known} onSaved={onSaved} onClose={onClose} />}
      remove={(name) => del("/channels/{name}", { path: { name } })}
    />
  );
}

function ChannelDialog({ known, onSaved, onClose }: Editing<Channel>) {
  const [name, setName] = useState(known?.name ?? "");
  const [texts, setTexts] = useState(channelTexts(known));
  const [made, setMade] = useState<string | null>(null);
  const { error, isBusy, send } = useSending();
  const { at, rest } = placed(error, ["url", "secret", "host", "port", "username", "password", "from", "to"]);
  const field = (of: keyof ChannelTexts, label = t(`alerts.field.${of as "url"}`)) => ({
    label,
    value: texts[of],
    onChange: (value: string) => setTexts({ ...texts, [of]: value }),
    problem: at(of),
  });

  async function save(): Promise<void> {
    const saved = await put("/channels/{name}", { path: { name }, body: channelBody(texts) });
    onSaved();
    // The secret that the server made is in this answer only.
    if (saved.secret?.startsWith("whsec_") && !texts.secret) setMade(saved.secret);
    else onClose();
  }

  if (made) {
    return <MadeDialog title={t("alerts.made")} lead={t("alerts.made.lead")} text={made} onClose={onClose} />;
  }
  return (
    <FormDialog
      title={known ? visible(known.name) : t("named.channels.new")}
      verb={t("action.save")}
      isBusy={isBusy}
      autoComplete="off"
      onSubmit={() => send(save)}
      onClose={onClose}
    >
      <NameField value={name} onChange={setName} isKnown={known !== null} />
      <ChoiceField
        {...field("type", t("alerts.type"))}
        choices={TYPES.map((one) => ({ value: one, text: t(`alerts.type.${one}`) }))}
      />
      {texts.type !== "email" ? (
        <>
          <TextField {...field("url")} required placeholder="https://" hint={known ? t("alerts.again") : undefined} />
          {texts.type === "webhook" && <TextField {...field("secret")} hint={t("alerts.secret.hint")} />}
        </>
      ) : (
        <>
          <div class="form-row">
            <TextField {...field("host")} required />
            <TextField {...field("port")} type="number" min={1} max={65_535} required />
            <ChoiceField
              {...field("security")}
              choices={["starttls", "tls", "none"].map((one) => ({ value: one, text: one }))}
            />
          </div>
          <div class="form-row">
            <TextField {...field("username")} />
            <TextField {...field("password")} type="password" hint={known ? t("alerts.again") : undefined} />
          </div>
          <TextField {...field("from")} required />
          <TextField {...field("to")} required />
        </>
      )}
      {rest && <Problem error={rest} />}
    </FormDialog>
  );
}
