// Package bench measures a path: any tunnel.Dialer, against a target that it
// brings along. It is what `konnectivity bench` and `make bench-e2e` run.
//
// Figures of one machine mean little by themselves; put a baseline beside
// them in the same run and compare.
package bench
