import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { Window } from "happy-dom";
import { h, render } from "preact";
import { useEffect } from "preact/hooks";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { get } from "../src/api/client";
import { unconfirmed } from "../src/live/freshness";
import type { Subject, View } from "../src/live/live";
import { repeat } from "../src/live/repeat";
import { type Live, useLive } from "../src/live/useLive";
import { usePolling } from "../src/live/usePolling";

/** A list of words on a real server: it is read at /graphs, and followed at /watch. */
class WordServer {
  words: string[] = [];
  reads = 0;
  status = 200;
  watchStatus = 200;
  lastIds: (string | undefined)[] = [];
  /** A reading that is held waits for this. */
  hold: Promise<void> | null = null;
  private streams = new Set<ServerResponse>();
  private server: Server = createServer((request, response) => void this.answer(request, response));

  async start(): Promise<string> {
    await new Promise<void>((resolve) => this.server.listen(0, "127.0.0.1", resolve));
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}/`;
  }

  async stop(): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }

  get followers(): number {
    return this.streams.size;
  }

  push(word: string): void {
    for (const stream of this.streams) stream.write(`event: word\ndata: ${JSON.stringify(word)}\n\n`);
  }

  endStreams(): void {
    for (const stream of this.streams) stream.end();
  }

  private async answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (request.url?.startsWith("/watch")) {
      this.lastIds.push(request.headers["last-event-id"] as string | undefined);
      this.follow(response);
      return;
    }
    this.reads += 1;
    const { status, words } = this;
    await this.hold;
    response.writeHead(status, { "Content-Type": "application/json" });
    response.end(JSON.stringify(status === 200 ? { words } : { message: `refused ${status}` }));
  }

  private follow(response: ServerResponse): void {
    response.writeHead(this.watchStatus, { "Content-Type": "text/event-stream" });
    if (this.watchStatus !== 200) {
      response.end("{}");
      return;
    }
    response.flushHeaders();
    response.write(": open\n\n");
    this.streams.add(response);
    response.on("close", () => this.streams.delete(response));
  }
}

type Words = readonly string[];

async function readWords(signal: AbortSignal): Promise<Words> {
  return ((await get("/graphs", { signal })) as unknown as { words: string[] }).words;
}

const FOLLOWED: Subject<Words> = {
  read: async ({ signal, change, meanwhile }) => {
    const words = await readWords(signal);
    change(() => [...words, ...meanwhile().map(({ data }) => data as string)]);
  },
  watch: {
    path: "/watch",
    options: {},
    apply: (words, { data }) => [...words, data as string],
  },
};

/** A document to draw in. Requests and streams are those of Node, to a real server. */
const page = new Window();
vi.stubGlobal("document", page.document);
const { fetch } = globalThis;

let server: WordServer;
let root: HTMLElement;
let live: Live<Words>;
let views: View<Words>[];

let mounted = 0;

/** Effects end some time after their component. */
function useMounted(): void {
  useEffect(() => {
    mounted += 1;
    return () => {
      mounted -= 1;
    };
  }, []);
}

function Shown({ id, subject, keep }: { id: string; subject: Subject<Words>; keep?: boolean }) {
  live = useLive<Words>(id, subject, (shown) => (keep ? (shown ?? []) : []));
  useMounted();
  views.push(live);
  return h("p", null, live.state.join(" "));
}

function mount(subject: Subject<Words>, id = "a", keep = false): void {
  render(h(Shown, { id, subject, keep }), root);
}

function text(): string {
  return root.textContent ?? "";
}

function isConnected(): boolean {
  return server.lastIds.length > 0 && unconfirmed.value === 0;
}

function setHidden(isHidden: boolean): void {
  Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
  document.dispatchEvent(new page.Event("visibilitychange") as unknown as Event);
}

/** Until an assertion holds. Only a failing test waits so long. */
function until(assertion: () => void): Promise<void> {
  return vi.waitFor(assertion, { timeout: 15_000, interval: 5 });
}

beforeEach(async () => {
  server = new WordServer();
  const origin = await server.start();
  vi.stubGlobal("fetch", (path: string, init: RequestInit) => fetch(new URL(path, origin), init));
  root = document.createElement("div");
  views = [];
});

afterEach(async () => {
  render(null, root);
  await until(() => expect(mounted).toBe(0));
  setHidden(false);
  await server.stop();
});

describe("a followed state", () => {
  it("is read, and changed by events", async () => {
    server.words = ["one"];
    mount(FOLLOWED);
    await until(() => expect(isConnected()).toBe(true));
    await until(() => expect(text()).toBe("one"));
    await live.refresh();
    server.push("two");
    await until(() => expect(text()).toBe("one two"));
    expect(live.error).toBeNull();
  });

  it("is read again once the stream is open, so that nothing is missed between the two", async () => {
    mount(FOLLOWED);
    await until(() => expect(isConnected()).toBe(true));
    await until(() => expect(server.reads).toBeGreaterThanOrEqual(2));
  });

  it("keeps events that come while an older answer is on its way", async () => {
    server.words = ["old"];
    mount(FOLLOWED);
    await until(() => expect(isConnected()).toBe(true));
    await live.refresh();
    let release = () => {};
    server.hold = new Promise((resolve) => {
      release = resolve;
    });
    const reads = server.reads;
    const reading = live.refresh();
    await until(() => expect(server.reads).toBe(reads + 1));
    server.push("meanwhile");
    await until(() => expect(text()).toBe("old meanwhile"));
    server.hold = null;
    release();
    await reading;
    expect(text()).toBe("old meanwhile");
  });

  it("is read once for calls that come together, and once more for those that come meanwhile", async () => {
    mount(FOLLOWED);
    await until(() => expect(isConnected()).toBe(true));
    await live.refresh();
    let release = () => {};
    server.hold = new Promise((resolve) => {
      release = resolve;
    });
    const before = server.reads;
    const first = live.refresh();
    await until(() => expect(server.reads).toBe(before + 1));
    const others = Promise.all([live.refresh(), live.refresh(), live.refresh()]);
    server.hold = null;
    release();
    await Promise.all([first, others]);
    expect(server.reads).toBe(before + 2);
  });

  it("is read when an event does not contain all that has changed", async () => {
    const watch = { ...FOLLOWED.watch!, apply: (words: Words) => words, needsRead: () => true };
    mount({ ...FOLLOWED, read: async ({ signal, change }) => change(await always(signal)), watch });
    await until(() => expect(isConnected()).toBe(true));
    await live.refresh();
    server.words = ["changed"];
    server.push("something");
    await until(() => expect(text()).toBe("changed"));
  });

  it("connects again, and reads what happened while it was away", async () => {
    mount(FOLLOWED);
    await until(() => expect(isConnected()).toBe(true));
    server.words = ["missed"];
    server.endStreams();
    await until(() => expect(server.lastIds).toHaveLength(2));
    await until(() => expect(isConnected()).toBe(true));
    await until(() => expect(text()).toBe("missed"));
  });

  it("continues after the last event where the stream can, without reading again", async () => {
    const watch = { ...FOLLOWED.watch!, lastId: (words: Words) => String(words.length || "") };
    mount({ ...FOLLOWED, watch });
    await until(() => expect(isConnected()).toBe(true));
    await live.refresh();
    const { reads } = server;
    server.push("one");
    await until(() => expect(text()).toBe("one"));
    server.endStreams();
    await until(() => expect(server.lastIds).toEqual([undefined, "1"]));
    await until(() => expect(isConnected()).toBe(true));
    expect(server.reads).toBe(reads);
  });

  it("is read a last time when it is over, and not followed any more", async () => {
    let wasOver: boolean | null = null;
    const subject: Subject<Words> = {
      read: async ({ signal, change, isStreamOver }) => {
        const words = await readWords(signal);
        wasOver = isStreamOver();
        change(() => words);
      },
      watch: { ...FOLLOWED.watch!, isOver: (words) => words.includes("end") },
    };
    mount(subject);
    await until(() => expect(isConnected()).toBe(true));
    await live.refresh();
    server.push("end");
    await until(() => expect(text()).toBe("end"));
    server.words = ["end", "and after"];
    server.endStreams();
    await until(() => expect(text()).toBe("end and after"));
    expect(wasOver).toBe(true);
    await live.refresh();
    expect(server.lastIds).toHaveLength(1);
  });

  it("shows why a stream was refused, and does not ask again", async () => {
    server.watchStatus = 404;
    mount(FOLLOWED);
    await until(() => expect(live.error).toMatchObject({ status: 404 }));
    expect(unconfirmed.value).toBe(0); // nothing more is expected of it
    await live.refresh();
    expect(server.lastIds).toHaveLength(1);
  });

  it("shows a failed reading until one succeeds", async () => {
    server.status = 500;
    mount(FOLLOWED);
    await until(() => expect(live.error?.message).toBe("refused 500"));
    server.status = 200;
    await live.refresh();
    await until(() => expect(live.error).toBeNull());
  });

  it("is not connected in the background", async () => {
    mount(FOLLOWED);
    await until(() => expect(server.followers).toBe(1));
    setHidden(true);
    await until(() => expect(server.followers).toBe(0));
    server.words = ["news"];
    setHidden(false);
    await until(() => expect(server.followers).toBe(1));
    await until(() => expect(text()).toBe("news"));
  });

  it("can be changed and extended by the page", async () => {
    server.words = ["one"];
    mount(FOLLOWED);
    await until(() => expect(isConnected()).toBe(true));
    await live.refresh();
    await live.also(async ({ state, change }) => change(() => [...state(), "two"]));
    await until(() => expect(text()).toBe("one two"));
    live.change((words) => words.slice(1));
    await until(() => expect(text()).toBe("two"));
    await live.also(() => Promise.reject(new Error("no further page")));
    await until(() => expect(live.error?.message).toBe("no further page"));
  });
});

async function always(signal: AbortSignal): Promise<() => Words> {
  const words = await readWords(signal);
  return () => words;
}

describe("the hook", () => {
  it("stops with its component", async () => {
    mount(FOLLOWED);
    await until(() => expect(server.followers).toBe(1));
    render(null, root);
    await until(() => expect(server.followers).toBe(0));
    const drawn = views.length;
    await live.refresh();
    expect(views).toHaveLength(drawn);
  });

  it.each([
    [false, ""],
    [true, "old"],
  ])("with another key starts anew, keeping what is shown: %s", async (isKept, shown) => {
    server.words = ["old"];
    mount(FOLLOWED, "a", isKept);
    await until(() => expect(isConnected()).toBe(true));
    await live.refresh();
    await until(() => expect(text()).toBe("old"));
    let release = () => {};
    server.words = ["new"];
    server.hold = new Promise((resolve) => {
      release = resolve;
    });
    mount(FOLLOWED, "b", isKept);
    await until(() => expect(text()).toBe(shown));
    server.hold = null;
    release();
    await until(() => expect(text()).toBe("new"));
    await until(() => expect(server.followers).toBe(1));
  });

  it("ignores an answer that comes after its key has changed", async () => {
    const asked: string[] = [];
    const answers = new Map<string, (words: Words) => void>();
    const subject = (id: string): Subject<Words> => ({
      read: async ({ change }) => {
        asked.push(id);
        const words = await new Promise<Words>((resolve) => answers.set(id, resolve));
        change(() => words);
      },
    });
    mount(subject("a"), "a");
    await until(() => expect(asked).toEqual(["a"]));
    mount(subject("b"), "b");
    await until(() => expect(asked).toEqual(["a", "b"]));
    answers.get("b")!(["second"]);
    await until(() => expect(text()).toBe("second"));
    answers.get("a")!(["first"]);
    await live.change((words) => words);
    expect(text()).toBe("second");
  });
});

describe("a polled answer", () => {
  let polled: ReturnType<typeof usePolling<Words>>;

  function Polled({ everyMs }: { everyMs: number }) {
    polled = usePolling(readWords, everyMs, "words");
    useMounted();
    return h("p", null, polled.value?.join(" ") ?? "nothing yet");
  }

  it("is read every so often, and shows an outage and its end", async () => {
    server.words = ["one"];
    render(h(Polled, { everyMs: 5 }), root);
    expect(text()).toBe("nothing yet");
    await until(() => expect(text()).toBe("one"));
    server.status = 500;
    await until(() => expect(polled.error?.message).toBe("refused 500"));
    expect(text()).toBe("one");
    server.words = ["two"];
    server.status = 200;
    await until(() => expect(text()).toBe("two"));
    expect(polled.error).toBeNull();
  });

  it("is read on demand", async () => {
    render(h(Polled, { everyMs: 1_000_000 }), root);
    await until(() => expect(text()).toBe(""));
    server.words = ["now"];
    await polled.refresh();
    await until(() => expect(text()).toBe("now"));
  });
});

describe("repeated work", () => {
  it("rests in the background, is done at once on return, and never twice at the same time", async () => {
    let running = 0;
    let most = 0;
    let done = 0;
    const stop = repeat(1, async () => {
      running += 1;
      most = Math.max(most, running);
      await Promise.resolve();
      running -= 1;
      done += 1;
    });
    await until(() => expect(done).toBeGreaterThan(2));
    setHidden(true);
    const before = done;
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(done).toBe(before);
    setHidden(false);
    expect(running + done).toBe(before + 1);
    await until(() => expect(done).toBeGreaterThan(before + 2));
    stop();
    const last = done;
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(done).toBeLessThanOrEqual(last + 1);
    expect(most).toBe(1);
  });
});
