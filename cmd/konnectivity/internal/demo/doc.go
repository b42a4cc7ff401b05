// Package demo is the whole suite in one process on loopback, with a request over
// each of its paths: what quickstart runs.
package demo
