import { visible } from "../format";
import { type Block, blocks, type Span, spans } from "./markdown";

/** Its headings are no headings of the page. */
export function Markdown({ text }: { text: string }) {
  return (
    <div class="markdown">
      {blocks(text).map((block, at) => (
        <One key={at} block={block} />
      ))}
    </div>
  );
}

function One({ block }: { block: Block }) {
  switch (block.kind) {
    case "rule":
      return <hr />;
    case "heading":
      return (
        <p>
          <strong>
            <Inside text={block.text} />
          </strong>
        </p>
      );
    case "code":
      return <pre tabIndex={0}>{visible(block.text)}</pre>;
    case "quote":
      return (
        <blockquote>
          <Inside text={block.text} />
        </blockquote>
      );
    case "text":
      return (
        <p>
          <Inside text={block.text} />
        </p>
      );
    case "table":
      return (
        <table>
          <tbody>
            {block.rows.map((row, at) => (
              <tr key={at}>
                {row.map((cell, n) => (
                  <td key={n}>
                    <Inside text={cell} />
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      );
    default: {
      const List = block.kind === "bullets" ? "ul" : "ol";
      return (
        <List>
          {block.items.map((item, at) => (
            <li key={at}>
              <Inside text={item} />
            </li>
          ))}
        </List>
      );
    }
  }
}

function Inside({ text }: { text: string }) {
  return (
    <>
      {spans(text).map((span, at) => (
        <Part key={at} span={span} />
      ))}
    </>
  );
}

function Part({ span: { kind, text, to } }: { span: Span }) {
  const words = visible(text);
  if (kind === "text") return <>{words}</>;
  if (kind !== "link") {
    const Name = kind;
    return <Name>{words}</Name>;
  }
  return (
    <a href={to} target="_blank" rel="noopener noreferrer" title={to}>
      {words}
    </a>
  );
}
