// Package pipe connects standard input and output to a destination, and tells which
// way the connection goes. The command dial calls it.
package pipe
