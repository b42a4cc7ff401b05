//go:build !linux

package tunnel

const (
	pollErr = 0x8
	pollHup = 0x10
)

// poll knows nothing on these systems: only a read or a write notices a reset.
func poll(uintptr, int16) (now int16, ok bool) { return 0, false }
