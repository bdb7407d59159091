import { render } from "preact";
import { Shell } from "./app/Shell";
import "./style.css";

render(<Shell />, document.getElementById("app")!);
