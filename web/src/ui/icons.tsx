/** Drawings of our own: one stroke, 16 units square. Decorative; the words stand beside them. */
import type { ComponentChildren } from "preact";

function Icon({ children, size = 16 }: { children: ComponentChildren; size?: number }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" width={size} height={size} aria-hidden="true" focusable="false">
      {children}
    </svg>
  );
}

const SHAPES = {
  // An empty ring: nothing has begun.
  pending: <circle cx="8" cy="8" r="5.2" class="line" stroke-dasharray="2.2 2" />,
  // A ring with a moving arc.
  running: (
    <>
      <circle cx="8" cy="8" r="5.2" class="line faint" />
      <path d="M8 2.8a5.2 5.2 0 0 1 5.2 5.2" class="line spin" />
    </>
  ),
  succeeded: <path d="M3.2 8.6l3.1 3.1 6.5-7" class="line bold" />,
  // An octagon, as a stop sign.
  failed: (
    <>
      <path d="M5.3 1.7h5.4l3.6 3.6v5.4l-3.6 3.6H5.3L1.7 10.7V5.3z" class="solid" />
      <path d="M5.8 5.8l4.4 4.4M10.2 5.8l-4.4 4.4" class="cut" />
    </>
  ),
  cancelling: (
    <>
      <rect x="3" y="3" width="10" height="10" rx="1.5" class="line" stroke-dasharray="3 2" />
      <path d="M4.5 11.5l7-7" class="line" />
    </>
  ),
  cancelled: (
    <>
      <rect x="3" y="3" width="10" height="10" rx="1.5" class="line" />
      <path d="M4.5 11.5l7-7" class="line" />
    </>
  ),
  // A speech bubble: somebody is asked.
  waiting: (
    <>
      <path
        d="M3.8 2h8.4a2.3 2.3 0 0 1 2.3 2.3v4.4a2.3 2.3 0 0 1-2.3 2.3H8.3L4.8 14.2V11h-1a2.3 2.3 0 0 1-2.3-2.3V4.3A2.3 2.3 0 0 1 3.8 2z"
        class="solid"
      />
      <path d="M5 6.5h.1M8 6.5h.1M11 6.5h.1" class="cut" />
    </>
  ),
  // A dot: nobody came by here.
  unreached: <circle cx="8" cy="8" r="2" class="solid" />,
  skipped: <path d="M3.5 3.5L9 8l-5.5 4.5M12.5 3.5v9" class="line bold" />,
  person: (
    <>
      <circle cx="8" cy="5" r="2.7" class="line" />
      <path d="M2.8 13.8c.6-5.6 9.8-5.6 10.4 0" class="line" />
    </>
  ),
  fork: <path d="M2 8h3.5M13.5 3.5H11c-3 0-2.5 4.5-5.5 4.5s2.5 4.5 5.5 4.5h2.5" class="line" />,
  join: <path d="M14 8h-3.5M2.5 3.5H5c3 0 2.5 4.5 5.5 4.5S8 12.5 5 12.5H2.5" class="line" />,
  outside: <path d="M6.5 3.5h-4v10h10v-4M9 2.5h4.5V7M13.5 2.5L7.5 8.5" class="line" />,
  archive: <path d="M2 3h12v3H2zM3.2 6v7.2h9.6V6M6.5 8.8h3" class="line" />,
  down: <path d="M3.5 6L8 10.5 12.5 6" class="line bold" />,
  back: <path d="M10 3.5L5.5 8l4.5 4.5" class="line bold" />,
  edit: <path d="M3 13l.7-3.2L10.9 2.6l2.5 2.5-7.2 7.2z" class="line" />,
  clock: <path d="M8 4.6V8l2.3 1.6M13.5 8A5.5 5.5 0 1 1 2.5 8a5.5 5.5 0 0 1 11 0z" class="line" />,
  play: <path d="M4.8 3l8 5-8 5z" class="line bold" />,
  pause: <path d="M5.5 3.5v9M10.5 3.5v9" class="line bold" />,
  idle: <circle cx="8" cy="8" r="3.4" class="line bold" />,
  stopped: <rect x="4" y="4" width="8" height="8" rx="1" class="line" />,
  disconnected: <path d="M3 8h3M10 8h3M7 5l2 6" class="line" />,
  plus: <path d="M8 3v10M3 8h10" class="line bold" />,
  close: <path d="M4 4l8 8M12 4l-8 8" class="line bold" />,
  copy: <path d="M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z" class="line" />,
  again: <path d="M13 8a5 5 0 1 1-1.6-3.7M13 2v3h-3" class="line bold" />,
  stop: <rect x="3.5" y="3.5" width="9" height="9" rx="1.5" class="solid" />,
  upload: <path d="M8 11V3M4.5 6.3L8 2.8l3.5 3.5M3 13.2h10" class="line bold" />,
  download: <path d="M8 3v8M4.5 7.7L8 11.2l3.5-3.5M3 13.2h10" class="line bold" />,
  trash: <path d="M3 4.5h10M6 4.5V2.8h4v1.7M4.5 4.5l.6 8.7h5.8l.6-8.7" class="line" />,
  eye: (
    <>
      <path d="M1.5 8C3 5 5.3 3.5 8 3.5S13 5 14.5 8C13 11 10.7 12.5 8 12.5S3 11 1.5 8z" class="line" />
      <circle cx="8" cy="8" r="2" class="line" />
    </>
  ),
  hide: <path d="M1.5 8C3 5 5.3 3.5 8 3.5S13 5 14.5 8C13 11 10.7 12.5 8 12.5S3 11 1.5 8zM3 13L13 3" class="line" />,
  limit: <path d="M3 13.5V2.5M13 13.5V2.5M5.5 8h5M8.5 5.5L11 8l-2.5 2.5" class="line" />,
  stack: <path d="M8 2l6 3-6 3-6-3zM2 8l6 3 6-3M2 11l6 3 6-3" class="line" />,
  key: <path d="M8.2 10.3a2.9 2.9 0 1 1-5.8 0 2.9 2.9 0 0 1 5.8 0zM7.4 8.3l6-5.8M11 4.8l2.2 2.2" class="line" />,
  megaphone: <path d="M2.5 6.5v3h2l6 3.5v-10l-6 3.5zM12.8 6.3a2.5 2.5 0 0 1 0 3.4M5 9.8l.8 3.4h1.8" class="line" />,
  lock: <path d="M3.5 7.2h9v6.3h-9zM5.3 7.2V5a2.7 2.7 0 0 1 5.4 0v2.2" class="line" />,
  book: <path d="M3.5 2.5h9v11h-9zM6 5.5h4M6 8h4M6 10.5h2.5" class="line" />,
  info: <path d="M8 7.3v4M8 4.6v.4M13.8 8A5.8 5.8 0 1 1 2.2 8a5.8 5.8 0 0 1 11.6 0z" class="line" />,
  runs: <path d="M2.5 4h11M2.5 8h7M2.5 12h9" class="line bold" />,
  flow: (
    <>
      <circle cx="3.8" cy="8" r="2" class="line" />
      <circle cx="12.2" cy="4" r="2" class="line" />
      <circle cx="12.2" cy="12" r="2" class="line" />
      <path d="M5.7 7.2l4.6-2.3M5.7 8.8l4.6 2.3" class="line" />
    </>
  ),
  compare: <path d="M8 2v12M5.5 4.5h-3v7h3M10.5 4.5h3v7h-3" class="line" />,
  bookmark: <path d="M4 2.5h8v11l-4-3.2-4 3.2z" class="line" />,
  bell: <path d="M3 11.5h10l-1.3-1.8V7a3.7 3.7 0 0 0-7.4 0v2.7zM6.8 13.8h2.4" class="line" />,
  inbox: <path d="M2.5 9l2-6h7l2 6v4.5h-11zM2.5 9h3.2l1 1.8h2.6l1-1.8h3.2" class="line" />,
  fleet: <path d="M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.5M5 11h.5" class="line" />,
  box: <path d="M8 1.8l5.5 3v6.4L8 14.2l-5.5-3V4.8zM2.7 4.9L8 7.8l5.3-2.9M8 7.8v6.2" class="line" />,
  chart: <path d="M2.5 2.5v11h11M5 10.5l2.5-3 2 2 3.5-4.5" class="line" />,
  dots: (
    <>
      <circle cx="3.5" cy="8" r="1.3" class="solid" />
      <circle cx="8" cy="8" r="1.3" class="solid" />
      <circle cx="12.5" cy="8" r="1.3" class="solid" />
    </>
  ),
  up: <path d="M3.5 10L8 5.5l4.5 4.5" class="line bold" />,
  chevron: <path d="M6 3.5L10.5 8 6 12.5" class="line bold" />,
  search: <path d="M11 11l3 3M12.2 7.1a5.1 5.1 0 1 1-10.2 0 5.1 5.1 0 0 1 10.2 0z" class="line" />,
  sun: (
    <>
      <circle cx="8" cy="8" r="2.8" class="line" />
      <path
        d="M8 1v1.8M8 13.2V15M1 8h1.8M13.2 8H15M3 3l1.3 1.3M11.7 11.7L13 13M13 3l-1.3 1.3M4.3 11.7L3 13"
        class="line"
      />
    </>
  ),
  moon: <path d="M13.3 9.7A5.8 5.8 0 0 1 6.3 2.7a5.8 5.8 0 1 0 7 7z" class="line" />,
  half: (
    <>
      <circle cx="8" cy="8" r="5.5" class="line" />
      <path d="M8 2.5a5.5 5.5 0 0 1 0 11z" class="solid" />
    </>
  ),
  leave: <path d="M6.5 2.8H3v10.4h3.5M6.5 8h7M10.7 5.2L13.5 8l-2.8 2.8" class="line bold" />,
};

export type IconName = keyof typeof SHAPES;

export function Glyph({ name, size }: { name: IconName; size?: number }) {
  return <Icon {...(size ? { size } : {})}>{SHAPES[name]}</Icon>;
}

/** Two hops, the second higher: ぴょこ. */
export function Logo() {
  return (
    <svg class="logo" viewBox="0 0 32 32" width="28" height="28" aria-hidden="true" focusable="false">
      <rect width="32" height="32" rx="8" class="logo-ground" />
      <path d="M5.5 23c1.3-6.6 7.2-6.6 8.5 0M14 23c1.6-11.5 10.4-11.5 12 0" class="logo-hop" />
      <circle cx="20" cy="9" r="3.7" class="logo-yolk" />
    </svg>
  );
}
