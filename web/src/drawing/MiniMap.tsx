import type { RefObject } from "preact";
import { useEffect, useState } from "preact/hooks";
import { type Tone, toneOf } from "../ui/Status";
import type { StateNode } from "./GraphView";
import type { Box, Placed } from "./layout";

/** With fewer nodes a graph can be taken in as it is. */
export const MAPPED_ABOVE = 40;
const WIDTH = 168;
const HEIGHT = 104;

/** What of the graph is in the window, in its own units; null: all of it. */
function windowOf(frame: HTMLElement, scale: number): Box | null {
  const { scrollLeft, scrollTop, clientWidth, clientHeight, scrollWidth, scrollHeight } = frame;
  if (scrollWidth <= clientWidth && scrollHeight <= clientHeight) return null;
  return { x: scrollLeft / scale, y: scrollTop / scale, width: clientWidth / scale, height: clientHeight / scale };
}

/** The whole graph in a corner; a click or a drag moves the window. The keyboard scrolls the graph itself. */
export function MiniMap({
  placed,
  states,
  frame,
  scale,
}: {
  placed: Placed;
  states: ReadonlyMap<string, StateNode>;
  frame: RefObject<HTMLDivElement | null>;
  scale: number;
}) {
  const [shown, setShown] = useState<Box | null>(null);
  useEffect(() => {
    const box = frame.current!;
    const update = () => setShown(windowOf(box, scale));
    const observer = new ResizeObserver(update);
    observer.observe(box);
    box.addEventListener("scroll", update);
    update();
    return () => {
      observer.disconnect();
      box.removeEventListener("scroll", update);
    };
  }, [scale, placed]);
  if (shown === null) return null;
  const size = Math.min(WIDTH / placed.width, HEIGHT / placed.height);

  function move(event: PointerEvent): void {
    const map = event.currentTarget as Element;
    if (event.buttons === 0 || !frame.current) return;
    map.setPointerCapture(event.pointerId);
    const { left, top } = map.getBoundingClientRect();
    const [x, y] = [(event.clientX - left) / size, (event.clientY - top) / size];
    frame.current.scrollTo({
      left: x * scale - frame.current.clientWidth / 2,
      top: y * scale - frame.current.clientHeight / 2,
    });
  }

  const tone = (id: string): Tone => {
    const state = states.get(id)?.state;
    return state ? toneOf(state) : "quiet";
  };
  return (
    <svg
      class="mini-map"
      aria-hidden="true"
      viewBox={`0 0 ${placed.width} ${placed.height}`}
      width={placed.width * size}
      height={placed.height * size}
      onPointerDown={move}
      onPointerMove={move}
    >
      {placed.nodes.map(({ id, x, y, width, height, isJunction }) =>
        isJunction ? null : (
          <rect key={id} class={`tone-${tone(id)}`} x={x} y={y} width={width} height={height} rx="8" />
        ),
      )}
      <rect class="mini-window" {...shown} />
    </svg>
  );
}
