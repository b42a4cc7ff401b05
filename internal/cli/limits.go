package cli

import (
	"runtime"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/memlimit"
)

// LogLimits tells, at debug level, what the runtime keeps to: memory in bytes,
// 0 for no limit, and processors.
func LogLimits(log logrus.FieldLogger) {
	log.WithFields(logrus.Fields{
		"memory_limit_bytes": memlimit.InForce(), "processors": runtime.GOMAXPROCS(0),
	}).Debug("limits of the process")
}
