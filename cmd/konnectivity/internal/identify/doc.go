// Package identify finds out what answers at an address, as far as a stranger can tell.
//
// It owns nothing once At has returned. The commands check, dial and status call
// it when a port is not what they took it for.
package identify
