import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { visible } from "../format";
import { t } from "../i18n";
import { Glyph, type IconName } from "../ui/icons";
import { type AnyState, StatusIcon, toneOf } from "../ui/Status";
import { fitting, type GraphEdge, type GraphFrame, type GraphNode, type PlacedNode, place } from "./layout";
import { MAPPED_ABOVE, MiniMap } from "./MiniMap";

export interface StateNode extends GraphNode {
  /** None: a plan, and nothing of it has happened. */
  state: AnyState | null;
  /** What kind of node it is, where there are several kinds. */
  kind?: { icon: IconName; name: string } | undefined;
}

export interface StateEdge extends GraphEdge {
  /** Where it is known whether this way was taken. */
  fate?: "taken" | "untaken" | "open" | "failed";
  isFailure?: boolean;
  title?: string;
}

const NO_FRAMES: readonly GraphFrame[] = [];

const STEP = 1.25;
const LARGEST = 2;
const SMALLEST = 0.1;
const ROOM_Y = 460;

const LABEL_FONT = "550 13px";
let canvas: CanvasRenderingContext2D | null = null;

function measure(label: string): number {
  canvas ??= document.createElement("canvas").getContext("2d");
  if (!canvas) return 0;
  canvas.font = `${LABEL_FONT} ${getComputedStyle(document.body).fontFamily}`;
  return canvas.measureText(visible(label)).width;
}

/** A graph of nodes with states. It is drawn once per shape; a change of state recolours it. */
export function GraphView({
  nodes,
  edges,
  frames = NO_FRAMES,
  label = t("graph.label", { n: nodes.length }),
  selected,
  onSelect,
}: {
  nodes: readonly StateNode[];
  edges: readonly StateEdge[];
  frames?: readonly GraphFrame[];
  label?: string;
  selected: string | null;
  onSelect: (id: string) => void;
}) {
  const shape = JSON.stringify([
    nodes.map((node) => node.id),
    edges.map((edge) => [edge.from, edge.to, edge.label, edge.key]),
    frames,
  ]);
  const placed = useMemo(() => place(nodes, edges, measure, frames), [shape]);
  const known = new Map(edges.map((edge) => [edge.key, edge]));
  const frame = useRef<HTMLDivElement>(null);
  const [scale, setScale] = useState(1);
  const states = new Map(nodes.map((node) => [node.id, node]));
  const unfinished = new Set(
    placed.edges.filter((edge) => states.get(edge.from)?.state !== "SUCCEEDED").map((edge) => edge.to),
  );
  const isDone = (id: string) => (states.has(id) ? states.get(id)?.state === "SUCCEEDED" : !unfinished.has(id));
  const lookOf = (edge: GraphEdge): string => {
    const shown = edge.key === undefined ? undefined : known.get(edge.key);
    if (!shown) return isDone(edge.from) ? "is-done" : "";
    return `is-${shown.fate ?? "open"} ${shown.isFailure ? "is-failure" : ""}`;
  };

  useEffect(() => {
    const room = frame.current?.clientWidth ?? 0;
    setScale(fitting(placed.width, placed.height, room, ROOM_Y));
  }, [placed]);

  const focus = ["WAITING", "FAILED", "RUNNING", undefined]
    .map((state) => nodes.find((node) => (state ? node.state === state : isFirst(node.id, edges))))
    .find((node) => node !== undefined);
  useEffect(() => {
    const at = placed.nodes.find((node) => node.id === focus?.id);
    const box = frame.current;
    if (!at || !box) return;
    box.scrollTo({
      left: (at.x + at.width / 2) * scale - box.clientWidth / 2,
      top: (at.y + at.height / 2) * scale - box.clientHeight / 2,
    });
  }, [focus?.id, scale, placed]);

  function whole(): void {
    const box = frame.current;
    if (box) setScale(Math.max(SMALLEST, Math.min(1, box.clientWidth / placed.width, ROOM_Y / placed.height)));
  }

  return (
    <div class="graph">
      <div class="graph-tools">
        <ZoomButton label={t("graph.out")} onClick={() => setScale((s) => Math.max(SMALLEST, s / STEP))} text="−" />
        <ZoomButton label={t("graph.in")} onClick={() => setScale((s) => Math.min(LARGEST, s * STEP))} text="+" />
        <button type="button" class="button quiet" onClick={whole}>
          {t("graph.fit")}
        </button>
      </div>
      <div class="graph-frame" ref={frame} tabIndex={0} role="group" aria-label={label}>
        <svg
          viewBox={`0 0 ${placed.width} ${placed.height}`}
          width={placed.width * scale}
          height={placed.height * scale}
        >
          {placed.frames.map((frame) => (
            <rect
              key={frame.id}
              class="graph-region"
              x={frame.x}
              y={frame.y}
              width={frame.width}
              height={frame.height}
              rx="12"
            />
          ))}
          {placed.edges.map((edge) => (
            <path
              key={`${edge.from}→${edge.to} ${edge.key ?? ""}`}
              d={edge.path}
              class={`graph-edge ${lookOf(edge)}`}
            />
          ))}
          {placed.edges.map(
            (edge) =>
              edge.label &&
              edge.labelAt && (
                <foreignObject
                  key={`${edge.from}→${edge.to} ${edge.key ?? ""} label`}
                  x={edge.labelAt.x}
                  y={edge.labelAt.y}
                  width={edge.labelAt.width}
                  height={edge.labelAt.height}
                >
                  <div
                    class={`graph-edge-label ${lookOf(edge)}`}
                    title={visible(known.get(edge.key)?.title ?? edge.label)}
                  >
                    <span>{visible(edge.label)}</span>
                  </div>
                </foreignObject>
              ),
          )}
          {placed.nodes.map((node) => {
            if (node.isJunction)
              return (
                <circle
                  key={node.id}
                  class="graph-junction"
                  cx={node.x + node.width / 2}
                  cy={node.y + node.height / 2}
                  r="3"
                />
              );
            const shown = states.get(node.id);
            if (!shown) return null;
            return (
              <Node
                key={node.id}
                at={node}
                node={shown}
                isSelected={node.id === selected}
                onSelect={() => onSelect(node.id)}
              />
            );
          })}
        </svg>
      </div>
      {nodes.length > MAPPED_ABOVE && <MiniMap placed={placed} states={states} frame={frame} scale={scale} />}
    </div>
  );
}

function isFirst(id: string, edges: readonly GraphEdge[]): boolean {
  return !edges.some((edge) => edge.to === id);
}

function ZoomButton({ label, text, onClick }: { label: string; text: string; onClick: () => void }) {
  return (
    <button type="button" class="icon-button" aria-label={label} title={label} onClick={onClick}>
      {text}
    </button>
  );
}

function Node({
  at,
  node: { label, state, kind },
  isSelected,
  onSelect,
}: {
  at: PlacedNode;
  node: StateNode;
  isSelected: boolean;
  onSelect: () => void;
}) {
  const shown = visible(label);
  const named = kind ? `${shown} (${kind.name})` : shown;
  const isAhead = state === "PENDING" || state === "UNREACHED" || state === "READY";
  return (
    <g
      class={`graph-node tone-${state ? toneOf(state) : "quiet"} ${isAhead ? "is-pending" : ""} ${state === "WAITING" ? "is-waiting" : ""}`}
      transform={`translate(${at.x} ${at.y})`}
      role="button"
      // Lower case: in SVG the attribute is not the one that HTML spells in any case.
      tabindex={0}
      aria-pressed={isSelected}
      aria-label={state ? t("graph.node", { task: named, state: t(`state.${state}`) }) : named}
      onClick={onSelect}
      onKeyDown={(event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          onSelect();
        }
      }}
    >
      <title>{shown}</title>
      <rect width={at.width} height={at.height} rx="7" />
      <foreignObject width={at.width} height={at.height}>
        <div class="graph-label">
          {state && <StatusIcon state={state} size={14} />}
          <span class="graph-name">{shown}</span>
          {kind && (
            <span class="graph-kind" title={kind.name}>
              <Glyph name={kind.icon} size={13} />
            </span>
          )}
        </div>
      </foreignObject>
    </g>
  );
}
