/** Pieces that the list and the page of a flow share. */
import { percent, toneOfRate } from "./flow";

export function Rate({ rate }: { rate: number | null }) {
  if (rate === null) return <span class="dim">–</span>;
  return <span class={`tone-text tone-${toneOfRate(rate)}`}>{percent(rate)}</span>;
}
