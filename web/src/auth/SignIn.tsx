import { useState } from "preact/hooks";
import { request } from "../api/client";
import { visible } from "../format";
import { t } from "../i18n";
import { Logo } from "../ui/icons";
import { Command, Problem } from "../ui/texts";
import { keyHeaders, rememberKey, signedOutFor } from "./session";

export function SignIn() {
  const [key, setKey] = useState("");
  const [error, setError] = useState<Error | null>(null);
  const [isBusy, setBusy] = useState(false);

  async function signIn(): Promise<void> {
    setBusy(true);
    setError(null);
    try {
      await request("get", "/runs", { query: { limit: 1 } }, keyHeaders(key.trim()));
      rememberKey(key.trim());
    } catch (problem) {
      setError(problem as Error);
      setBusy(false);
    }
  }

  return (
    <main class="signin" id="content">
      <form
        class="panel form"
        onSubmit={(event) => {
          event.preventDefault();
          void signIn();
        }}
      >
        <Logo />
        <h1>{t("signin.title")}</h1>
        {signedOutFor.value !== null && (
          <div class="notice tone-warn" role="status">
            <p>
              {t("signin.over")} {visible(signedOutFor.value)}
            </p>
          </div>
        )}
        <p>{t("signin.lead")}</p>
        <label>
          <span>{t("signin.key")}</span>
          <input
            type="password"
            required
            autoFocus
            autoComplete="off"
            spellcheck={false}
            placeholder="pyoco_…"
            value={key}
            onInput={(event) => setKey(event.currentTarget.value)}
          />
        </label>
        {error && <Problem error={error} />}
        <button type="submit" class="button primary" disabled={isBusy}>
          {t("signin.do")}
        </button>
        <p class="dim">{t("signin.where")}</p>
        <Command text="pyoco-server-admin api-key create --tenant my-team" />
      </form>
    </main>
  );
}
