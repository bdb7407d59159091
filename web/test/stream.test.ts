import { describe, expect, it } from "vitest";
import { EventParser } from "../src/live/stream";

describe("server-sent events", () => {
  it("are read however they are cut", () => {
    const text = 'event: snapshot\nid: 7\ndata: {"a":1}\n\nevent: log\ndata: {"b":2}\n\n';
    for (let cut = 0; cut <= text.length; cut++) {
      const parser = new EventParser();
      const events = [...parser.push(text.slice(0, cut)), ...parser.push(text.slice(cut))];
      expect(events).toEqual([
        { name: "snapshot", data: '{"a":1}', id: "7" },
        { name: "log", data: '{"b":2}', id: null },
      ]);
    }
  });

  it("may have several lines of data, comments and other line ends", () => {
    const parser = new EventParser();
    expect(parser.push(": hello\n\ndata: a\r\ndata:b\r\n\r\n")).toEqual([{ name: "message", data: "a\nb", id: null }]);
  });
});
