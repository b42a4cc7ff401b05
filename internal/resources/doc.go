// Package resources is what this process uses of its machine: its processor time,
// the memory limit that its runtime keeps, and the memory that it returns once it
// is idle.
//
// Package cli calls it as a program starts.
package resources
