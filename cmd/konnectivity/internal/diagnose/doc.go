// Package diagnose walks a sidecar's way from its files to a destination, and says
// of each step whether it works, or else why not and what to do.
package diagnose
