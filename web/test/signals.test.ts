// @vitest-environment happy-dom
import { h, render } from "preact";
import { useState } from "preact/hooks";
import { afterEach, describe, expect, it } from "vitest";
import { computed, effect, signal, useComputed } from "../src/app/signals";

const drawn = () => new Promise((resolve) => setTimeout(resolve, 20));

afterEach(() => render(null, document.body));

describe("a signal", () => {
  it("repeats what has read it, until that is stopped", () => {
    const n = signal(1);
    const seen: number[] = [];
    const stop = effect(() => void seen.push(n.value));
    n.value = 2;
    n.value = 2;
    stop();
    n.value = 3;
    expect(seen).toEqual([1, 2]);
  });

  it("is followed only where it was read the last time", () => {
    const which = signal("a");
    const [a, b] = [signal(1), signal(1)];
    let times = 0;
    effect(() => {
      times += 1;
      void (which.value === "a" ? a.value : b.value);
    });
    which.value = "b";
    a.value = 2;
    expect(times).toBe(2);
    b.value = 2;
    expect(times).toBe(3);
  });

  it("may be read without being followed", () => {
    const n = signal(1);
    let times = 0;
    effect(() => {
      times += n.peek();
    });
    n.value = 5;
    expect(times).toBe(1);
  });

  it("is what others follow from", () => {
    const n = signal(1);
    const isEven = computed(() => n.value % 2 === 0);
    const words = computed(() => (isEven.value ? "even" : "odd"));
    n.value = 4;
    expect(words.value).toBe("even");
  });
});

describe("a component", () => {
  it("is drawn again when what it has read changes, and its parent is not", async () => {
    const n = signal(1);
    const times = { parent: 0, child: 0 };
    const Child = () => {
      times.child += 1;
      return h("b", null, n.value);
    };
    const Parent = () => {
      times.parent += 1;
      return h("p", null, h(Child, null));
    };
    render(h(Parent, null), document.body);
    n.value = 2;
    await drawn();
    expect(document.body.textContent).toBe("2");
    expect(times).toEqual({ parent: 1, child: 2 });
  });

  it("is drawn again for other props, for its state, and not for the same props", async () => {
    const word = signal("a");
    let times = 0;
    const Row = ({ id }: { id: number }) => {
      times += 1;
      const [n, setN] = useState(0);
      return h("button", { onClick: () => setN(n + 1) }, `${word.value}${id}${n}`);
    };
    const Plain = ({ id }: { id: number }) => {
      times += 1;
      return h("i", null, `${word.value}${id}`);
    };
    const draw = (id: number) => render(h("p", null, h(Plain, { id }), h(Row, { id })), document.body);
    draw(1);
    expect(times).toBe(2);
    draw(1);
    expect(times).toBe(3); // one with state is always drawn
    draw(2);
    document.querySelector("button")!.click();
    await drawn();
    expect(document.body.textContent).toBe("a2a21");
  });

  it("that is gone follows nothing", async () => {
    const n = signal(1);
    let times = 0;
    const One = () => {
      times += 1;
      return h("b", null, n.value);
    };
    render(h(One, null), document.body);
    render(null, document.body);
    n.value = 2;
    await drawn();
    expect(times).toBe(1);
  });

  it("is drawn only when what follows from signals is another", async () => {
    const n = signal(1);
    let times = 0;
    const One = () => {
      times += 1;
      const isLarge = useComputed(() => n.value > 2);
      return h("b", null, String(isLarge.value));
    };
    render(h(One, null), document.body);
    n.value = 2;
    await drawn();
    expect(times).toBe(1);
    n.value = 3;
    await drawn();
    expect(document.body.textContent).toBe("true");
  });
});
