/** A Python traceback as a value: what went wrong first, then where, the innermost frame first. */
export interface Frame {
  file: string;
  line: number;
  name: string;
  code: string;
  /** Of Python, an installed package or the server: rarely where the error is. */
  isLibrary: boolean;
}

export interface Raised {
  /** `KeyError: 'x'`, with all its lines. */
  error: string;
  frames: Frame[];
}

const FRAME = /^ {2}File "(.+)", line (\d+)(?:, in (.+))?$/;
const BETWEEN = /\n\n(?:During handling of the above|The above exception was)[^\n]*\n\n/;
const LIBRARY =
  /[\\/](?:site|dist)-packages[\\/]|[\\/]lib[\\/]python3|^<frozen|[\\/]pyoco_server[\\/](?!engine[\\/]demo_)/;

/** The last exception first; those that led to it behind. Empty: it is no traceback. */
export function raised(text: string): Raised[] {
  const found = text.split(BETWEEN).map(one);
  return found.every(({ frames }) => frames.length > 0) ? found.reverse() : [];
}

function one(text: string): Raised {
  const frames: Frame[] = [];
  const error: string[] = [];
  for (const line of text.trimEnd().split("\n")) {
    const match = FRAME.exec(line);
    const last = frames.at(-1);
    if (match && error.length === 0) {
      const [, file = "", at, name = ""] = match;
      frames.push({ file, line: Number(at), name, code: "", isLibrary: LIBRARY.test(file) });
    } else if (last && error.length === 0 && line.startsWith("    ")) {
      // Carets below the code mark a place in it; a shortened traceback has no room for them.
      if (!/^[\s^~]+$/.test(line)) last.code += `${last.code ? "\n" : ""}${line.slice(4)}`;
    } else if (last && !/^ {2}\[Previous line/.test(line)) error.push(line);
  }
  return { error: error.join("\n"), frames: frames.reverse() };
}

/** Library frames that follow each other together. */
export function folded(frames: readonly Frame[]): (Frame | Frame[])[] {
  const found: (Frame | Frame[])[] = [];
  for (const frame of frames) {
    const last = found.at(-1);
    if (!frame.isLibrary) found.push(frame);
    else if (Array.isArray(last)) last.push(frame);
    else found.push([frame]);
  }
  return found;
}
