/** Loaded together. */
export { LimitPage } from "./LimitPage";
export { LimitsPage } from "./LimitsPage";
