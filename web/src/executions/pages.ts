/** Loaded together: they share the graph and the inbox. */
export { ExecutionPage } from "./ExecutionPage";
export { ExecutionsPage } from "./ExecutionsPage";
export { GraphPage } from "./graphs/GraphPage";
export { GraphsPage } from "./graphs/GraphsPage";
export { WaitsPage } from "./waits/WaitsPage";
