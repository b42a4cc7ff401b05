// Package admission handles connections until a front serves them. It accepts
// them even through shortages, limits how many are open without letting silent
// ones keep others out, and notices when a client leaves while it waits for an
// answer.
package admission
