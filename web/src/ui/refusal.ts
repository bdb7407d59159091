/** Which fields of a form the server has refused, and why. */
import { ApiError } from "../api/client";

const NAMES = String.raw`[\w.]+(?:, [\w.]+)*`;
const BETWEEN = new RegExp(`; (?=${NAMES}: )`);
const PART = new RegExp(`^(${NAMES}): (.+)$`, "s");

/** `max_running: must be 1 to 10,000; key: …`, by the names of the fields; one part may be about several. */
export function fieldProblems(detail: string): Map<string, string> {
  const found = new Map<string, string>();
  for (const part of detail.split(BETWEEN)) {
    const [, names = "", text = ""] = PART.exec(part) ?? [];
    for (const name of names.split(", ").filter(Boolean)) found.set(name, text);
  }
  return found;
}

export interface Placed {
  /** What is wrong with a field, or with something inside of it. */
  at: (field: string) => string | undefined;
  /** What belongs to no field of the form. */
  rest: Error | null;
}

export function placed(error: Error | null, fields: readonly string[]): Placed {
  const problems = error instanceof ApiError ? fieldProblems(error.detail) : new Map<string, string>();
  const isAt = (field: string, name: string) => name === field || name.startsWith(`${field}.`);
  const isShown = [...problems.keys()].some((name) => fields.some((field) => isAt(field, name)));
  return {
    at: (field) => [...problems].find(([name]) => isAt(field, name))?.[1],
    rest: isShown ? null : error,
  };
}
