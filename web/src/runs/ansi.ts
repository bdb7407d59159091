/** What a program printed for a terminal: colours become classes, other commands to the terminal disappear. */
export interface Piece {
  text: string;
  /** `ansi-2 ansi-bold`; empty: plain. */
  style: string;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: finding them is its purpose
const COMMAND = /\u001b\[([\d;:?]*)([A-Za-z])/g;
const COLOURS = 8;

interface Pen {
  colour: number | null;
  isBold: boolean;
}

const PLAIN: Pen = { colour: null, isBold: false };

export function pieces(text: string): Piece[] {
  const found: Piece[] = [];
  let pen = PLAIN;
  let at = 0;
  const add = (end: number) => {
    if (end > at) found.push({ text: text.slice(at, end), style: styleOf(pen) });
  };
  for (const match of text.matchAll(COMMAND)) {
    add(match.index);
    at = match.index + match[0].length;
    if (match[2] === "m") pen = drawn(pen, (match[1] ?? "").split(";").map(Number));
  }
  add(text.length);
  return found;
}

/** The pen after `ESC [ … m`. The 256 colours and those of 24 bits are left plain. */
function drawn(pen: Pen, codes: readonly number[]): Pen {
  let next = pen;
  for (const code of codes) {
    if (code === 38 || code === 48) return next;
    next = changed(next, code);
  }
  return next;
}

function changed(pen: Pen, code: number): Pen {
  if (code === 0) return PLAIN;
  if (code === 1) return { ...pen, isBold: true };
  if (code === 22) return { ...pen, isBold: false };
  if (code === 39) return { ...pen, colour: null };
  const colour = code >= 90 ? code - 90 : code - 30;
  return colour >= 0 && colour < COLOURS ? { ...pen, colour } : pen;
}

function styleOf({ colour, isBold }: Pen): string {
  return [colour === null ? "" : `ansi-${colour}`, isBold ? "ansi-bold" : ""].filter(Boolean).join(" ");
}
