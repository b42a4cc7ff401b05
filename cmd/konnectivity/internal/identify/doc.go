// Package identify finds out what answers at an address, as far as a stranger can.
//
// It owns nothing once At has returned. What finds a port that is not what it
// took it for asks it: check, dial and status.
package identify
