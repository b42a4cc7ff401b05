// Package screen formats output for a person at a terminal: as wide as it is,
// in colour where it has any, with short figures.
package screen
