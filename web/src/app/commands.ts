/** Commands to copy. They name this server, and take secrets from the environment. */
import { needsKey } from "../auth/session";
import { shellQuoted } from "../format";

/** `--api-key` is named so that a shell without the variable is refused for a reason that it can see. */
export function asClient(command: string, origin: string, hasKeys: boolean): string {
  return `pyoco-client ${command} --server ${shellQuoted(origin)}${hasKeys ? ' --api-key "$PYOCO_API_KEY"' : ""}`;
}

export function client(command: string): string {
  return asClient(command, location.origin, needsKey);
}

/** The page does not know the address of NATS: it may contain a password, and anybody may open this page. */
export function worker(tag = "default"): string {
  return `pyoco-worker --flows flows --tags ${shellQuoted(tag)} --nats-url "$PYOCO_NATS_URL"`;
}
