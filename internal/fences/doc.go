// Package fences holds the rules of the house that a machine can check: which
// folder may import what (docs and the table in rules_test.go agree), and
// calls that no package may make. It has tests only.
package fences
