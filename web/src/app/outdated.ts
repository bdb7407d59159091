/** Whether the server has another page than this one: after an upgrade, files that this one names are gone. */
const RELOADED = "pyoco.reloaded";
/** Behind a proxy, gateways of two versions may answer in turn. Then a person decides. */
const ONCE_IN_MS = 30_000;

/** The script that a page starts with. Its name contains a hash of what is in it. */
export function scriptOf(page: string): string | null {
  return /<script[^>]*\ssrc="([^"]+)"/.exec(page)?.[1] ?? null;
}

async function servedScript(): Promise<string | null> {
  try {
    const response = await fetch("/", { cache: "no-store" });
    return response.ok ? scriptOf(await response.text()) : null;
  } catch {
    return null; // the server is away
  }
}

/** True at most once in a while: whoever asks reloads the page. */
export async function isOutdated(): Promise<boolean> {
  const served = await servedScript();
  const own = document.querySelector("script[src]")?.getAttribute("src");
  if (served === null || served === own) return false;
  const last = Number(sessionStorage.getItem(RELOADED) ?? 0);
  if (Date.now() - last < ONCE_IN_MS) return false;
  sessionStorage.setItem(RELOADED, String(Date.now()));
  return true;
}
