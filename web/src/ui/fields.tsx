/** Fields of forms: a name above, what is wrong below. */
import { cloneElement, type InputHTMLAttributes, type VNode } from "preact";
import { useId } from "preact/hooks";
import { visible } from "../format";

interface Labelled {
  label: string;
  hint?: string | undefined;
  /** What is wrong with the value. */
  problem?: string | undefined;
}

export function Field({ label, hint, problem, children }: Labelled & { children: VNode }) {
  const id = useId();
  const described = problem || hint ? { "aria-describedby": id } : {};
  return (
    <div class={`field ${problem ? "is-wrong" : ""}`}>
      <label htmlFor={`${id}-in`}>
        <span>{label}</span>
        {cloneElement(children, { id: `${id}-in`, ...described, "aria-invalid": problem ? true : undefined })}
      </label>
      {problem ? (
        <p class="field-problem" id={id} role="alert">
          {visible(problem)}
        </p>
      ) : (
        hint && (
          <p class="dim note" id={id}>
            {visible(hint)}
          </p>
        )
      )}
    </div>
  );
}

interface Value {
  value: string;
  onChange: (text: string) => void;
}

export function TextField({
  value,
  onChange,
  label,
  hint,
  problem,
  ...input
}: Labelled &
  Value & {
    type?: "text" | "password" | "number" | "date" | "datetime-local";
    min?: number | undefined;
    max?: number | undefined;
    step?: number | "any";
    required?: boolean;
    readOnly?: boolean;
    autoFocus?: boolean;
    maxLength?: number;
    pattern?: string;
    placeholder?: string;
    list?: string;
    class?: string;
  }) {
  return (
    <Field label={label} hint={hint} problem={problem}>
      <input
        {...(input as InputHTMLAttributes)}
        spellcheck={false}
        value={value}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
    </Field>
  );
}

export function AreaField({ value, onChange, label, hint, problem, rows }: Labelled & Value & { rows: number }) {
  return (
    <Field label={label} hint={hint} problem={problem}>
      <textarea
        class="mono"
        rows={rows}
        spellcheck={false}
        value={value}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
    </Field>
  );
}

export interface Choice {
  value: string;
  text: string;
}

export function ChoiceField({
  value,
  onChange,
  label,
  hint,
  problem,
  choices,
}: Labelled & Value & { choices: readonly Choice[] }) {
  return (
    <Field label={label} hint={hint} problem={problem}>
      <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {choices.map((one) => (
          <option key={one.value} value={one.value}>
            {one.text}
          </option>
        ))}
      </select>
    </Field>
  );
}
