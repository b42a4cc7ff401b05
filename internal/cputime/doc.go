// Package cputime measures the processor time of this process.
//
// Package idle calls it.
package cputime
