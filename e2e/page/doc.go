// Package page looks at the status page as its reader does: in a real browser,
// Debian's chromium, on top of a real suite of programs and of tables with
// thousands of connections. It has tests only. `make e2e-page` runs them; with
// -pictures=DIR they also keep what they saw.
package page
