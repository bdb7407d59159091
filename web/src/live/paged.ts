/** A list that is read page by page and again and again, whatever its order is. */
export interface Page<T> {
  items: readonly T[];
  next_cursor: string | null;
}

export interface Pages<T> {
  rows: readonly T[];
  /** Leads to the next page. */
  cursor: string | null;
  isLoaded: boolean;
}

/** What is known, with its beginning as it is now. What follows the new beginning was not read again, and stays. */
export function laidOver<T>(known: Pages<T>, page: Page<T>, keyOf: (row: T) => string): Pages<T> {
  const last = page.items.at(-1);
  const at = last === undefined ? -1 : known.rows.findIndex((row) => keyOf(row) === keyOf(last));
  const rest = at < 0 || page.next_cursor === null ? [] : known.rows.slice(at + 1);
  return {
    rows: [...page.items, ...rest],
    cursor: rest.length > 0 ? known.cursor : page.next_cursor,
    isLoaded: true,
  };
}

export function withNext<T>(known: Pages<T>, page: Page<T>, keyOf: (row: T) => string): Pages<T> {
  const seen = new Set(known.rows.map(keyOf));
  const rows = [...known.rows, ...page.items.filter((row) => !seen.has(keyOf(row)))];
  return { ...known, rows, cursor: page.next_cursor };
}
