package cli

import (
	"os"
	"runtime"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/resources"
)

// NewLogger returns the logger of the program component, configured by flags.
func NewLogger(flags *LogFlags, component string) (*logrus.Entry, error) {
	log, err := flags.New(component, os.Stderr)
	if err != nil {
		return nil, err
	}
	logLimits(log)
	return log, nil
}

// logLimits logs the limits of the runtime at debug level: memory in bytes, 0
// for no limit, and processors.
func logLimits(log logrus.FieldLogger) {
	log.WithFields(logrus.Fields{
		"memory_limit_bytes": resources.MemoryLimit(), "processors": runtime.GOMAXPROCS(0),
	}).Debug("limits of the process")
}
