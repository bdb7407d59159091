/** Values that the page follows: what has read one while it was drawn is drawn again when it changes. */
import { Component, options, type VNode } from "preact";
import { useEffect, useState } from "preact/hooks";

type Followers = Set<Follower>;

/** Reads signals, and is called when one of them has changed. */
class Follower {
  readonly followed = new Set<Followers>();
  isStale = false;

  constructor(readonly onChange: () => void) {}

  /** What is read from now on is followed; what was read before is not. */
  begin(): void {
    this.leave();
    this.isStale = false;
    reading = this;
  }

  leave(): void {
    for (const followers of this.followed) followers.delete(this);
    this.followed.clear();
  }
}

let reading: Follower | null = null;

export class Signal<T> {
  readonly #followers: Followers = new Set();
  #value: T;

  constructor(value: T) {
    this.#value = value;
  }

  get value(): T {
    if (reading) {
      this.#followers.add(reading);
      reading.followed.add(this.#followers);
    }
    return this.#value;
  }

  set value(value: T) {
    if (value === this.#value) return;
    this.#value = value;
    for (const follower of [...this.#followers]) follower.onChange();
  }

  /** Without following it. */
  peek(): T {
    return this.#value;
  }
}

export function signal<T>(value: T): Signal<T> {
  return new Signal(value);
}

/** Works now, and again whenever what it has read changes. Returns how to stop it. */
export function effect(work: () => void): () => void {
  const run = () => {
    const before = reading;
    follower.begin();
    try {
      work();
    } finally {
      reading = before;
    }
  };
  const follower = new Follower(run);
  run();
  return () => follower.leave();
}

/** A value that follows from others. It is never left: for values of the whole page. */
export function computed<T>(of: () => T): Pick<Signal<T>, "value"> {
  return following(of).found;
}

function following<T>(of: () => T) {
  const found = new Signal<T | undefined>(undefined);
  const stop = effect(() => {
    found.value = of();
  });
  return { found: found as Signal<T>, stop };
}

/** The same for a component, which is drawn again only when the value is another. It follows from signals alone. */
export function useComputed<T>(of: () => T): Pick<Signal<T>, "value"> {
  const [{ found, stop }] = useState(() => following(of));
  useEffect(() => stop, []);
  return found;
}

// Components. The names of these places in Preact are short in every build of it.

interface Drawn extends Component {
  follower?: Follower;
  hasState?: boolean;
}

type Hook = (...values: never[]) => void;
const places = options as unknown as Record<string, Hook | undefined>;
const DIFF = "__b";
const DRAW = "__r";
const HOOK = "__h";
const CATCH = "__e";

function before<A extends unknown[]>(place: string, work: (...values: A) => void): void {
  const known = places[place] as ((...values: A) => void) | undefined;
  places[place] = ((...values: A) => {
    work(...values);
    known?.(...values);
  }) as unknown as Hook;
}

function componentOf(vnode: VNode): Drawn | undefined {
  return (vnode as unknown as { __c?: Drawn }).__c;
}

function nothingIsRead(): void {
  reading = null;
}

before(DIFF, nothingIsRead);
before("diffed", nothingIsRead);
before(CATCH, nothingIsRead);
before(DRAW, (vnode: VNode) => {
  nothingIsRead();
  const component = componentOf(vnode);
  if (component === undefined || typeof vnode.type !== "function") return;
  component.follower ??= new Follower(() => {
    component.follower!.isStale = true;
    component.setState({});
  });
  component.follower.begin();
});
before(HOOK, (component: Drawn, _at: number, kind: number) => {
  if (kind < 3) component.hasState = true; // of `useState` and `useReducer`
});
before("unmount", (vnode: VNode) => componentOf(vnode)?.follower?.leave());

/** One that follows signals says itself when it has to be drawn again, unless it is given something else. */
Component.prototype.shouldComponentUpdate = function (this: Drawn, given: object): boolean {
  const { follower, hasState } = this;
  if (!follower?.followed.size || follower.isStale || hasState) return true;
  const known = this.props as Record<string, unknown>;
  const names = Object.keys(given);
  return (
    names.length !== Object.keys(known).length ||
    names.some((name) => (given as Record<string, unknown>)[name] !== known[name])
  );
};
