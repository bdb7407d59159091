import { describe, expect, it } from "vitest";
import { commandOf, PLACES } from "../src/app/keys";
import { sectionOf } from "../src/app/sections";

describe("keys", () => {
  it.each([
    ["j", "", { act: "move", by: 1 }],
    ["k", "", { act: "move", by: -1 }],
    ["x", "", { act: "select" }],
    ["/", "", { act: "search" }],
    ["?", "", { act: "keys" }],
    ["r", "g", { act: "go", path: "runs" }],
    ["r", "", null],
    ["g", "", null],
    ["j", "g", null],
    ["constructor", "g", null],
  ])("%s behind %s", (key, before, command) => expect(commandOf(key, before)).toEqual(command));

  it("lead to pages that exist", () => {
    for (const path of Object.values(PLACES)) expect(sectionOf(path)?.path).toBe(path);
  });
});
