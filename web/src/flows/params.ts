/** A form for the params of a run: from the flow's JSON Schema, or from the params of its last run. */
import type { Json } from "../api/client";

export type Params = { [name: string]: Json };
export type Kind = "text" | "date" | "integer" | "number" | "choice" | "json";

export interface ParamField {
  name: string;
  kind: Kind;
  isRequired: boolean;
  hint: string;
  /** The values to choose from. */
  choices: readonly Json[];
}

export interface ParamForm {
  fields: readonly ParamField[];
  /** Params without a field are allowed. */
  isOpen: boolean;
}

type Schema = { [key: string]: unknown };

function isObject(value: unknown): value is Schema {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Null: the schema has no list of params that a form could be drawn from. */
export function formOf(schema: Schema | null): ParamForm | null {
  const properties = schema?.properties;
  if (!isObject(properties) || Object.keys(properties).length === 0) return null;
  const required = Array.isArray(schema?.required) ? schema.required : [];
  return {
    fields: Object.entries(properties).map(([name, part]) =>
      fieldOf(name, isObject(part) ? part : {}, required.includes(name)),
    ),
    isOpen: schema?.additionalProperties !== false,
  };
}

/** What a flow without a schema was last started with. */
export function formLike(params: Params): ParamForm | null {
  const properties = Object.fromEntries(Object.entries(params).map(([name, value]) => [name, { type: typeOf(value) }]));
  return formOf({ properties });
}

function typeOf(value: Json): string {
  if (value === null) return "any";
  return Array.isArray(value) ? "array" : typeof value;
}

function fieldOf(name: string, schema: Schema, isRequired: boolean): ParamField {
  const kind = kindOf(schema);
  return {
    name,
    kind,
    isRequired,
    hint: [schema.title, schema.description, rangeOf(schema)].filter((text) => typeof text === "string").join(" · "),
    choices: kind === "choice" ? choicesOf(schema) : [],
  };
}

/** `1–12`, `≥ 1`, `≤ 12`. */
function rangeOf({ minimum, maximum }: Schema): string | null {
  if (typeof minimum === "number") return typeof maximum === "number" ? `${minimum}–${maximum}` : `≥ ${minimum}`;
  return typeof maximum === "number" ? `≤ ${maximum}` : null;
}

const KINDS: { [type: string]: Kind } = {
  string: "text",
  integer: "integer",
  number: "number",
  boolean: "choice",
};

function kindOf(schema: Schema): Kind {
  if (Array.isArray(schema.enum)) return "choice";
  const types = [schema.type].flat().filter((type) => type !== "null");
  const kind = types.length === 1 ? (KINDS[String(types[0])] ?? "json") : "json";
  return kind === "text" && schema.format === "date" ? "date" : kind;
}

function choicesOf(schema: Schema): Json[] {
  return Array.isArray(schema.enum) ? (schema.enum as Json[]) : [true, false];
}

/** What the fields show at first: the last params where there are some, then the defaults of the schema. */
export function startOf(form: ParamForm, schema: Schema | null, last: Params): { [name: string]: string } {
  const properties = isObject(schema?.properties) ? schema.properties : {};
  return Object.fromEntries(
    form.fields.map((field) => {
      const part = properties[field.name];
      const value = Object.hasOwn(last, field.name) ? last[field.name] : isObject(part) ? part.default : undefined;
      return [field.name, textOf(field, value as Json | undefined)];
    }),
  );
}

export function textOf(field: ParamField, value: Json | undefined): string {
  if (value === undefined) return field.kind === "choice" && field.isRequired ? JSON.stringify(field.choices[0]) : "";
  return isPlain(field) && typeof value === "string" ? value : JSON.stringify(value);
}

function isPlain({ kind }: ParamField): boolean {
  return kind === "text" || kind === "date";
}

/** Params of the last run that have no field. */
export function others(form: ParamForm, last: Params): Params {
  const known = new Set(form.fields.map((field) => field.name));
  return Object.fromEntries(Object.entries(last).filter(([name]) => !known.has(name)));
}

/** The value of a field; undefined: it is left out. Throws where the text is no JSON. */
export function readText(field: ParamField, text: string): Json | undefined {
  if (text === "" && !(field.isRequired && isPlain(field))) return undefined;
  return isPlain(field) ? text : (JSON.parse(text) as Json);
}

/** All fields, and what is wrong with those that cannot be read. */
export function readFields(
  form: ParamForm,
  texts: { [name: string]: string },
): { params: Params; problems: Map<string, string> } {
  const params: Params = {};
  const problems = new Map<string, string>();
  for (const field of form.fields) {
    try {
      const value = readText(field, texts[field.name] ?? "");
      if (value !== undefined) params[field.name] = value;
    } catch (problem) {
      problems.set(field.name, (problem as Error).message);
    }
  }
  return { params, problems };
}
