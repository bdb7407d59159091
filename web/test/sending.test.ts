// @vitest-environment happy-dom
import { h, render } from "preact";
import { describe, expect, it } from "vitest";
import { useSending } from "../src/ui/useSending";

describe("a form that is sent", () => {
  it("sends once for two clicks before the page is drawn again, and again when that is done", async () => {
    const sent: Array<() => void> = [];
    function Form() {
      const { send } = useSending();
      return h("button", { onClick: () => send(() => new Promise<void>((resolve) => sent.push(resolve))) });
    }
    const root = document.createElement("div");
    render(h(Form, {}), root);
    const click = () => root.querySelector("button")!.click();
    click();
    click();
    expect(sent).toHaveLength(1);
    sent[0]!();
    await new Promise((resolve) => setTimeout(resolve));
    click();
    expect(sent).toHaveLength(2);
  });
});
