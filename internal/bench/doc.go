// Package bench measures a path, which is any tunnel.Dialer, against a target
// of its own. `konnectivity bench` and `make bench-e2e` run it.
//
// Figures of one machine mean little by themselves; compare them with a
// baseline from the same run.
package bench
