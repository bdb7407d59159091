import type { Ref } from "preact";
import { useId, useState } from "preact/hooks";
import { Glyph, type IconName } from "./icons";

export interface Option {
  key: string;
  text: string;
  hint?: string | undefined;
  icon?: IconName | undefined;
}

/** Preact's types know `role="combobox"` only beside a `<datalist>`, which cannot show hints. */
const COMBOBOX: object = { role: "combobox", type: "search" };

/** A line to type in, with what it may become below it: arrow keys choose, Enter takes, Escape closes. */
export function Combo<O extends Option>({
  label,
  hint,
  value,
  options,
  isAlwaysOpen = false,
  input,
  onInput,
  onChoose,
  onEnter,
  onLeave,
}: {
  label: string;
  hint: string;
  value: string;
  options: readonly O[];
  /** Enter takes the first, unless another is chosen. */
  isAlwaysOpen?: boolean;
  input?: Ref<HTMLInputElement>;
  onInput: (text: string) => void;
  onChoose: (option: O) => void;
  onEnter?: () => void;
  onLeave?: () => void;
}) {
  const id = useId();
  const first = isAlwaysOpen ? 0 : -1;
  const [at, setAt] = useState(first);
  const [isOpen, setOpen] = useState(false);
  const isShown = (isOpen || isAlwaysOpen) && options.length > 0;
  const chosen = isShown ? options[at] : undefined;

  function choose(option: O): void {
    setAt(first);
    onChoose(option);
  }

  function onKey(event: KeyboardEvent): void {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by !== undefined) {
      setOpen(true);
      const from = isOpen || isAlwaysOpen ? at : -1;
      setAt(Math.max(first, Math.min(options.length - 1, from + by)));
    } else if (event.key === "Enter") {
      if (chosen) choose(chosen);
      else {
        setOpen(false);
        onEnter?.();
      }
    } else if (event.key === "Escape" && isShown && !isAlwaysOpen) {
      setOpen(false);
      setAt(first);
    } else return;
    event.preventDefault();
  }

  return (
    <div class="combo">
      <input
        {...COMBOBOX}
        autoFocus={isAlwaysOpen}
        ref={input}
        aria-label={label}
        aria-expanded={isShown}
        aria-controls={id}
        aria-autocomplete="list"
        aria-activedescendant={chosen && `${id}-${at}`}
        placeholder={hint}
        autoComplete="off"
        spellcheck={false}
        value={value}
        onInput={(event) => {
          setOpen(true);
          setAt(first);
          onInput(event.currentTarget.value);
        }}
        onKeyDown={onKey}
        onFocus={() => setOpen(true)}
        onBlur={() => {
          setOpen(false);
          setAt(first);
          onLeave?.();
        }}
      />
      <div id={id} role="listbox" aria-label={label} hidden={!isShown}>
        {isShown &&
          options.map((option, n) => (
            // biome-ignore lint/a11y/useKeyWithClickEvents: the keys are those of the input, which keeps the focus
            <div
              key={option.key}
              id={`${id}-${n}`}
              role="option"
              tabIndex={-1}
              aria-selected={n === at}
              onPointerDown={(event) => event.preventDefault()}
              onClick={() => choose(option)}
            >
              {option.icon && <Glyph name={option.icon} />}
              <span>{option.text}</span>
              {option.hint && <span class="dim">{option.hint}</span>}
            </div>
          ))}
      </div>
    </div>
  );
}
