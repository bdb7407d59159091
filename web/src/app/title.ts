/** What the page is about: in the tab, and at the end of the breadcrumb. */

import { useEffect } from "preact/hooks";
import { signal } from "./signals";

/** Of the one thing that is shown; null on pages with a list. */
export const detail = signal<string | null>(null);

export function useTitle(text: string | null): void {
  useEffect(() => {
    detail.value = text;
    return () => {
      detail.value = null;
    };
  }, [text]);
}
