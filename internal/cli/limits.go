package cli

import (
	"runtime"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/memlimit"
)

// LogLimits logs the limits of the runtime at debug level: memory in bytes, 0
// for no limit, and processors.
func LogLimits(log logrus.FieldLogger) {
	log.WithFields(logrus.Fields{
		"memory_limit_bytes": memlimit.InForce(), "processors": runtime.GOMAXPROCS(0),
	}).Debug("limits of the process")
}
