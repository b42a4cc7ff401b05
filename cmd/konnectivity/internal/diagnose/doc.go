// Package diagnose checks the path of a sidecar from its files to a destination, and the
// settings of a tenant. Each step has a finding: it works, or why not and what to do.
package diagnose
