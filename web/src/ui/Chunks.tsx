import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

const ROWS = 25;
/** Drawn before they are scrolled to. */
const AHEAD = "1500px 0px";

/** The rows of a long table, some in each body. A body that is far away is empty, and as high as it was. */
export function Chunks<T>({
  rows,
  columns,
  children,
}: {
  rows: readonly T[];
  columns: number;
  children: (row: T) => JSX.Element;
}) {
  const chunks = Array.from({ length: Math.ceil(rows.length / ROWS) }, (_, n) => rows.slice(n * ROWS, (n + 1) * ROWS));
  return (
    <>
      {chunks.map((some, n) => (
        <Chunk key={n} columns={columns}>
          {() => some.map(children)}
        </Chunk>
      ))}
    </>
  );
}

function Chunk({ columns, children }: { columns: number; children: () => ComponentChildren }) {
  const body = useRef<HTMLTableSectionElement>(null);
  /** Null: near enough to be drawn. */
  const [height, setHeight] = useState<number | null>(null);
  useEffect(() => {
    const observer = new IntersectionObserver(
      (entries) => {
        const { isIntersecting, boundingClientRect } = entries.at(-1)!;
        setHeight(isIntersecting ? null : boundingClientRect.height);
      },
      { rootMargin: AHEAD },
    );
    observer.observe(body.current!);
    return () => observer.disconnect();
  }, []);
  return (
    <tbody ref={body}>
      {height === null ? (
        children()
      ) : (
        <tr class="far" style={{ height: `${height}px` }}>
          <td colSpan={columns} />
        </tr>
      )}
    </tbody>
  );
}
