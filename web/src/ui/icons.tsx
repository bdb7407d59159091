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
      <path d="M5.3 1.7h5.4l3.6 3.600v5.400l-3.600 3.600H5.300L1.700 10.700V5.300z" class="solid" />
      <path d="M5.8 5.800l4.400 4.400M10.200 5.800l-4.400 4.400" class="cut" />
    </>
  ),
  cancelling: (
    <>
      <rect x="3" y="3" width="10" height="10" rx="1.5" class="line" stroke-dasharray="3 2" />
      <path d="M4.500 11.500l7-7" class="line" />
    </>
  ),
  cancelled: (
    <>
      <rect x="3" y="3" width="10" height="10" rx="1.5" class="line" />
      <path d="M4.500 11.500l7-7" class="line" />
    </>
  ),
  // A speech bubble: somebody is asked.
  waiting: (
    <>
      <path
        d="M3.800 2h8.400a2.300 2.300 0 0 1 2.300 2.300v4.400a2.300 2.300 0 0 1-2.300 2.300H8.300L4.800 14.200V11h-1a2.300 2.300 0 0 1-2.300-2.300V4.300A2.300 2.300 0 0 1 3.800 2z"
        class="solid"
      />
      <path d="M5 6.500h.1M8 6.500h.1M11 6.500h.1" class="cut" />
    </>
  ),
  // A dot: nobody came by here.
  unreached: <circle cx="8" cy="8" r="2" class="solid" />,
  skipped: <path d="M3.500 3.500L9 8l-5.500 4.500M12.500 3.500v9" class="line bold" />,
  person: (
    <>
      <circle cx="8" cy="5" r="2.700" class="line" />
      <path d="M2.800 13.800c.6-5.600 9.800-5.600 10.400 0" class="line" />
    </>
  ),
  fork: <path d="M2 8h3.500M13.500 3.500H11c-3 0-2.500 4.500-5.500 4.500s2.500 4.500 5.500 4.500h2.500" class="line" />,
  join: <path d="M14 8h-3.500M2.500 3.500H5c3 0 2.500 4.500 5.500 4.500S8 12.500 5 12.500H2.500" class="line" />,
  outside: <path d="M6.500 3.500h-4v10h10v-4M9 2.500h4.500V7M13.500 2.500L7.500 8.500" class="line" />,
  archive: <path d="M2 3h12v3H2zM3.200 6v7.200h9.600V6M6.500 8.800h3" class="line" />,
  down: <path d="M3.500 6L8 10.500 12.500 6" class="line bold" />,
  back: <path d="M10 3.500L5.500 8l4.500 4.500" class="line bold" />,
  edit: <path d="M3 13l.7-3.200L10.900 2.600l2.500 2.500-7.200 7.200z" class="line" />,
  clock: <path d="M8 4.600V8l2.300 1.600M13.500 8A5.500 5.500 0 1 1 2.500 8a5.500 5.500 0 0 1 11 0z" class="line" />,
  play: <path d="M4.800 3l8 5-8 5z" class="line bold" />,
  pause: <path d="M5.500 3.500v9M10.500 3.500v9" class="line bold" />,
  idle: <circle cx="8" cy="8" r="3.4" class="line bold" />,
  stopped: <rect x="4" y="4" width="8" height="8" rx="1" class="line" />,
  disconnected: <path d="M3 8h3M10 8h3M7 5l2 6" class="line" />,
  plus: <path d="M8 3v10M3 8h10" class="line bold" />,
  close: <path d="M4 4l8 8M12 4l-8 8" class="line bold" />,
  copy: <path d="M5.500 5.500v-3h8v8h-3M2.500 5.500h8v8h-8z" class="line" />,
  again: <path d="M13 8a5 5 0 1 1-1.600-3.700M13 2v3h-3" class="line bold" />,
  stop: <rect x="3.500" y="3.500" width="9" height="9" rx="1.500" class="solid" />,
  upload: <path d="M8 11V3M4.500 6.300L8 2.800l3.500 3.500M3 13.200h10" class="line bold" />,
  download: <path d="M8 3v8M4.500 7.700L8 11.200l3.500-3.500M3 13.200h10" class="line bold" />,
  trash: <path d="M3 4.500h10M6 4.500V2.800h4v1.700M4.500 4.500l.6 8.700h5.800l.6-8.700" class="line" />,
  eye: (
    <>
      <path
        d="M1.500 8C3 5 5.300 3.500 8 3.500S13 5 14.500 8C13 11 10.700 12.500 8 12.500S3 11 1.500 8z"
        class="line"
      />
      <circle cx="8" cy="8" r="2" class="line" />
    </>
  ),
  hide: (
    <path
      d="M1.500 8C3 5 5.300 3.500 8 3.500S13 5 14.500 8C13 11 10.700 12.500 8 12.500S3 11 1.500 8zM3 13L13 3"
      class="line"
    />
  ),
  limit: <path d="M3 13.500V2.500M13 13.500V2.500M5.500 8h5M8.500 5.500L11 8l-2.500 2.500" class="line" />,
  stack: <path d="M8 2l6 3-6 3-6-3zM2 8l6 3 6-3M2 11l6 3 6-3" class="line" />,
  key: (
    <path
      d="M8.200 10.300a2.900 2.900 0 1 1-5.800 0 2.900 2.900 0 0 1 5.800 0zM7.400 8.300l6-5.800M11 4.800l2.200 2.200"
      class="line"
    />
  ),
  book: <path d="M3.500 2.500h9v11h-9zM6 5.500h4M6 8h4M6 10.500h2.500" class="line" />,
  info: <path d="M8 7.300v4M8 4.600v.4M13.800 8A5.800 5.800 0 1 1 2.200 8a5.800 5.800 0 0 1 11.600 0z" class="line" />,
  runs: <path d="M2.500 4h11M2.500 8h7M2.500 12h9" class="line bold" />,
  flow: (
    <>
      <circle cx="3.800" cy="8" r="2" class="line" />
      <circle cx="12.200" cy="4" r="2" class="line" />
      <circle cx="12.200" cy="12" r="2" class="line" />
      <path d="M5.700 7.200l4.600-2.300M5.700 8.800l4.600 2.300" class="line" />
    </>
  ),
  bell: <path d="M3 11.500h10l-1.300-1.800V7a3.700 3.700 0 0 0-7.400 0v2.700zM6.800 13.800h2.400" class="line" />,
  inbox: <path d="M2.500 9l2-6h7l2 6v4.500h-11zM2.500 9h3.200l1 1.800h2.600l1-1.800h3.200" class="line" />,
  fleet: <path d="M2.500 3h11v4h-11zM2.500 9h11v4h-11zM5 5h.5M5 11h.5" class="line" />,
  box: (
    <path
      d="M8 1.800l5.500 3v6.400L8 14.200l-5.500-3V4.800zM2.700 4.900L8 7.800l5.300-2.900M8 7.800v6.200"
      class="line"
    />
  ),
  chart: <path d="M2.500 2.500v11h11M5 10.500l2.500-3 2 2 3.500-4.500" class="line" />,
  dots: (
    <>
      <circle cx="3.500" cy="8" r="1.300" class="solid" />
      <circle cx="8" cy="8" r="1.300" class="solid" />
      <circle cx="12.500" cy="8" r="1.300" class="solid" />
    </>
  ),
  up: <path d="M3.500 10L8 5.500l4.500 4.500" class="line bold" />,
  chevron: <path d="M6 3.500L10.500 8 6 12.500" class="line bold" />,
  search: <path d="M11 11l3 3M12.200 7.100a5.100 5.100 0 1 1-10.200 0 5.100 5.100 0 0 1 10.200 0z" class="line" />,
  sun: (
    <>
      <circle cx="8" cy="8" r="2.800" class="line" />
      <path
        d="M8 1v1.800M8 13.200V15M1 8h1.800M13.200 8H15M3 3l1.300 1.300M11.700 11.700L13 13M13 3l-1.300 1.300M4.300 11.700L3 13"
        class="line"
      />
    </>
  ),
  moon: <path d="M13.300 9.700A5.800 5.800 0 0 1 6.300 2.700a5.800 5.800 0 1 0 7 7z" class="line" />,
  half: (
    <>
      <circle cx="8" cy="8" r="5.500" class="line" />
      <path d="M8 2.500a5.500 5.500 0 0 1 0 11z" class="solid" />
    </>
  ),
  leave: <path d="M6.500 2.800H3v10.400h3.500M6.500 8h7M10.700 5.200L13.500 8l-2.800 2.800" class="line bold" />,
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
      <path d="M5.500 23c1.300-6.600 7.200-6.600 8.500 0M14 23c1.600-11.500 10.400-11.500 12 0" class="logo-hop" />
      <circle cx="20" cy="9" r="3.700" class="logo-yolk" />
    </svg>
  );
}
