/**
 * Repeats work while the page is visible, each time a pause after the last has ended. A page that becomes visible
 * does it at once. The returned function stops it.
 */
export function repeat(pauseMs: number | (() => number), work: () => Promise<void>): () => void {
  let isWanted = true;
  let isBusy = false;
  let timer: ReturnType<typeof setTimeout> | undefined;

  function wait(): void {
    clearTimeout(timer);
    if (isWanted) timer = setTimeout(() => void once(), typeof pauseMs === "number" ? pauseMs : pauseMs());
  }

  async function once(): Promise<void> {
    if (!document.hidden && !isBusy) {
      isBusy = true;
      await work().finally(() => {
        isBusy = false;
      });
    }
    wait();
  }

  function onVisibility(): void {
    if (!document.hidden) void once();
  }

  document.addEventListener("visibilitychange", onVisibility);
  wait();
  return () => {
    isWanted = false;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", onVisibility);
  };
}
