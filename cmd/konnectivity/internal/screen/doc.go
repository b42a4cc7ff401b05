// Package screen puts things in the form that a person reads at a terminal: as
// wide as it is, in colour where it has any, with figures that are short.
package screen
