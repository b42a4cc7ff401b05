package tunnel

import "time"

// Moment is a point in time that is only compared with others of the process, in
// nanoseconds since its start; 0: none. It takes 8 bytes, where a time.Time takes 24, and
// no clock that is set changes how far apart two are.
type Moment int64

// born is what moments are counted from.
var born = time.Now()

// Now is the present. Any goroutine may call it.
func Now() Moment { return Moment(time.Since(born)) }

// At is when t was, which time.Now gave, and which may be before the process began.
func At(t time.Time) Moment { return Moment(t.Sub(born)) }
