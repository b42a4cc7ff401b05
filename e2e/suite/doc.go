// Package suite starts the built binaries as processes on loopback, for tests
// and benchmarks that look at them from outside only.
package suite
