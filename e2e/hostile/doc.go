// Package hostile attacks the built programs and watches what that costs:
// memory, the time in which an agent gets in, and the answers of /healthz. Each
// attack lasts a few seconds; `make hostile` gives it a minute and prints the
// figures.
package hostile
