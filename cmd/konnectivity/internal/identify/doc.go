// Package identify finds out what answers at an address, as far as a stranger can.
package identify
