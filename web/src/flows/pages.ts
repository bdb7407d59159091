/** Loaded together. */
export { FlowPage } from "./FlowPage";
export { FlowsPage } from "./FlowsPage";
