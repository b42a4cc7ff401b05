//go:build !linux

package redirect

import (
	"fmt"
	"runtime"
)

// Apply needs Linux.
func (p *Plan) Apply() error { return errSystem() }

// Remove needs Linux.
func Remove() error { return errSystem() }

func errSystem() error {
	return fmt.Errorf("only Linux can redirect connections to a sidecar, and this is %s", runtime.GOOS)
}
