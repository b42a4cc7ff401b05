// Package admission handles connections until a front serves them. It accepts
// them even through shortages, limits how many are open without letting silent
// ones keep others out, notices when a client leaves while it waits for an
// answer, and hands connections from one front to another.
//
// All that accept connections call it: the fronts of the sidecars and the server,
// and the ports for health and metrics. It owns the slots; the connections remain
// their fronts'.
package admission
