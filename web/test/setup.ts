/** Tests find the texts of both languages loaded. */
import { loadTexts } from "../src/i18n";

await Promise.all([loadTexts("en"), loadTexts("ja")]);
