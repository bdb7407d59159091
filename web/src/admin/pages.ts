/** Loaded together. */
export { AboutPage } from "./AboutPage";
export { AuditPage } from "./AuditPage";
export { KeysPage } from "./KeysPage";
