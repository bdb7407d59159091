import { render } from "preact";
import { isOutdated } from "./app/outdated";
import { Shell } from "./app/Shell";
import { language, loadTexts } from "./i18n";
import "./style.css";

const app = document.getElementById("app")!;

async function start(): Promise<void> {
  try {
    await loadTexts(language.value);
  } catch {
    if (await isOutdated()) location.reload();
    // There are no texts to take it from.
    else app.textContent = "pyoco-server: please reload this page. / ページを再読み込みしてください。";
    return;
  }
  render(<Shell />, app);
}

void start();
