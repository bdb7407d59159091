/** What long lists have in common: counts, filters, progress, and the way to the next page. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { Schemas } from "../api/client";
import { compact, count, visible } from "../format";
import { language, t } from "../i18n";

/** `most`: there may be more than were counted. */
export function Count({ value, most = Number.POSITIVE_INFINITY }: { value: number | undefined; most?: number }) {
  if (value === undefined) return <span class="count">…</span>;
  const more = value >= most ? "+" : "";
  return (
    <span class="count" title={count(value, language.value) + more}>
      {(value < 100_000 ? count(value, language.value) : compact(value)) + more}
    </span>
  );
}

const TYPING_MS = 300;

export function FilterInput({
  value,
  hint,
  onChange,
}: {
  value: string | undefined;
  hint: string;
  onChange: (text: string) => void;
}) {
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  return (
    <input
      type="search"
      value={value ?? ""}
      placeholder={hint}
      onInput={(event) => {
        const text = event.currentTarget.value.trim();
        clearTimeout(timer.current);
        timer.current = setTimeout(() => onChange(text), TYPING_MS);
      }}
    />
  );
}

/** One of a few values, or any. */
export function FilterSelect({
  label,
  value,
  choices,
  onChange,
}: {
  label: string;
  value: string | undefined;
  choices: readonly { value: string; text: string }[];
  onChange: (value: string) => void;
}) {
  return (
    <label>
      <span>{label}</span>
      <select value={value ?? ""} onChange={(event) => onChange(event.currentTarget.value)}>
        <option value="">{t("runs.all")}</option>
        {choices.map((one) => (
          <option key={one.value} value={one.value}>
            {one.text}
          </option>
        ))}
      </select>
    </label>
  );
}

/** The next page comes when its place is scrolled to, or when it is asked for. */
export function More({ isMore, shown, onMore }: { isMore: boolean; shown: number; onMore: () => Promise<void> }) {
  const button = useRef<HTMLButtonElement>(null);
  const [isLoading, setLoading] = useState(false);
  const load = useRef<() => void>(() => undefined);
  load.current = () => {
    if (isLoading) return;
    setLoading(true);
    void onMore().finally(() => setLoading(false));
  };
  useEffect(() => {
    if (!button.current) return;
    const observer = new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && load.current(),
      { rootMargin: "600px" },
    );
    observer.observe(button.current);
    return () => observer.disconnect();
  }, [isMore, shown]);
  if (!isMore) return <p class="dim list-end">{t("runs.end", { n: count(shown, language.value) })}</p>;
  return (
    <button
      type="button"
      class="button quiet list-end"
      ref={button}
      disabled={isLoading}
      onClick={() => load.current()}
    >
      {isLoading ? t("runs.loading") : t("runs.more")}
    </button>
  );
}

export function Progress({ done, total, label }: { done: number; total: number; label: string }) {
  if (total === 0) return <span class="dim">–</span>;
  return (
    <span class="progress" title={label}>
      <progress value={done} max={total} aria-label={label} />
      <span>
        {done}/{total}
      </span>
    </span>
  );
}

/** How far the tasks of a run report that it is. */
export function Advance({ progress: { value, message } }: { progress: Schemas["RunProgress"] }) {
  return (
    <>
      {value !== null && (
        <>
          <progress value={value} max={1} aria-label={t("node.progress")} />
          <span>{Math.floor(value * 100)}%</span>
        </>
      )}
      {message && <span class="advance-text">{visible(message)}</span>}
    </>
  );
}
