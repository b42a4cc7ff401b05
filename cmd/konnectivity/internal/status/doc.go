// Package status reads the state of processes over the admin API, finds the problems that
// an operator should look at first, and prints both. It also formats output for terminals.
package status
