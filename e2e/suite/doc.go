// Package suite starts the built binaries as processes on loopback, for tests
// and benchmarks that examine them only from outside.
package suite
