//go:build !linux && !darwin

package admin

import "time"

var start = time.Now()

// sinceBoot is by Go's monotonic clock, which goes on while Windows is suspended. It may begin
// anywhere.
func sinceBoot() time.Duration { return time.Since(start) }
