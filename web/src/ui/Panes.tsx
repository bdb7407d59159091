import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import { remember, remembered } from "../app/preferences";
import { t } from "../i18n";

const LEAST = 25;
const MOST = 75;
const STEP = 5;

export function withinBounds(share: number): number {
  return Number.isFinite(share) ? Math.round(Math.max(LEAST, Math.min(MOST, share))) : 50;
}

/** Two parts side by side, with a line between them that can be moved; one above the other where there is no room. */
export function Panes({ name, children }: { name: string; children: [ComponentChildren, ComponentChildren] }) {
  const known = remembered(`panes.${name}`);
  const [share, setShare] = useState(withinBounds(known === null ? 50 : Number(known)));
  const box = useRef<HTMLDivElement>(null);

  function move(to: number): void {
    const next = withinBounds(to);
    setShare(next);
    remember(`panes.${name}`, String(next));
  }

  function follow(event: PointerEvent): void {
    if (!(event.currentTarget as Element).hasPointerCapture(event.pointerId) || !box.current) return;
    const { left, width } = box.current.getBoundingClientRect();
    move(((event.clientX - left) / width) * 100);
  }

  return (
    <div class="panes" ref={box} style={{ "--share": `${share}fr`, "--rest": `${100 - share}fr` }}>
      <div>{children[0]}</div>
      <div
        class="pane-line"
        role="separator"
        tabIndex={0}
        aria-label={t("panes.resize")}
        aria-orientation="vertical"
        aria-valuenow={share}
        aria-valuemin={LEAST}
        aria-valuemax={MOST}
        onPointerDown={(event) => event.currentTarget.setPointerCapture(event.pointerId)}
        onPointerMove={follow}
        onDblClick={() => move(50)}
        onKeyDown={(event) => {
          if (event.key === "ArrowLeft") move(share - STEP);
          if (event.key === "ArrowRight") move(share + STEP);
        }}
      />
      <div>{children[1]}</div>
    </div>
  );
}
