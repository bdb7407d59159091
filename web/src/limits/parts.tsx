/** Pieces that the list and the page of a limit share. */
import type { Limit } from "../api/client";
import { link } from "../app/router";
import { visible } from "../format";
import { t } from "../i18n";
import { allowance, MATCHES } from "./limit";

/** Which runs it concerns. */
export function Concerns({ limit }: { limit: Limit }) {
  const given = MATCHES.filter((name) => limit.match[name] !== null && limit.match[name] !== undefined);
  if (given.length === 0) return <>{t("limit.match.all")}</>;
  return (
    <>
      {given.map((name, at) => (
        <span key={name}>
          {at > 0 && " · "}
          <span class="dim">{t(`limit.match.${name}`)}</span> <Matched name={name} value={limit.match[name] ?? ""} />
        </span>
      ))}
    </>
  );
}

function Matched({ name, value }: { name: (typeof MATCHES)[number]; value: string }) {
  const places = { flow: ["flows", value], graph: ["graphs", value], tag: ["queues"], tenant: null };
  const found = places[name];
  return found ? <a href={link(found)}>{visible(value)}</a> : <span>{visible(value)}</span>;
}

export function Allows({ limit }: { limit: Limit }) {
  return (
    <>
      {allowance(limit).join(" · ")}
      {limit.key !== null && (
        <span class="row-reason">
          {t("limit.perKey")} <code>{visible(limit.key)}</code>
        </span>
      )}
    </>
  );
}
