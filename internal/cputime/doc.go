// Package cputime measures the processor time of this process.
//
// Package idle asks it.
package cputime
